/* xcheck_dump.h: writes dumps of what an inference engine computes, for xcheck to judge.
 *
 * One header, C99 or C++11, no dependency. In one source file of the engine:
 *
 *     #define XCHECK_DUMP_IMPLEMENTATION
 *     #include "xcheck_dump.h"
 *
 * and include it plainly elsewhere. Then:
 *
 *     xcheck_dump *dump = xcheck_create("run.safetensors", "my-engine", "llama");
 *     xcheck_setting(dump, "dtype", "f32");
 *     xcheck_rope_pairing(dump, "half");
 *     xcheck_pass(dump, tokens, n_tokens, 0);
 *     xcheck_tap(dump, "attn_norm", layer, XCHECK_F32, xcheck_2d(n_tokens, dim), x);
 *     ...
 *     if (xcheck_close(dump)) fprintf(stderr, "%s\n", xcheck_error(dump));
 *     xcheck_free(dump);
 *
 * The dump is one file where the path ends with ".safetensors", else a folder of .npy files. What comes goes to the disk at
 * once, under names with ".part" beside the path; xcheck_close gives it its name. Until then there is nothing there, and
 * xcheck_free without xcheck_close leaves nothing.
 *
 * Every function returns 0, or 1 if it refuses or a write fails. The first error stays: xcheck_error tells it, nothing more is
 * written, and everything later returns 1, xcheck_close too. So an engine may look at that of xcheck_close alone.
 *
 * The taps, their shapes and the manifest are docs/reference/dump-format.md of xcheck. Arrays are row-major; numbers are written as they
 * lie in memory, which has to be little-endian. One dump belongs to one thread at a time.
 */
#ifndef XCHECK_DUMP_H
#define XCHECK_DUMP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct xcheck_dump xcheck_dump;

/* Element types. f16 and bf16 are given as their 16 bits. */
typedef enum { XCHECK_F32, XCHECK_F64, XCHECK_F16, XCHECK_BF16, XCHECK_U32, XCHECK_I32 } xcheck_dtype;

/* Lengths of axes, outermost first. */
enum { XCHECK_MOST_AXES = 8 };
typedef struct {
    size_t rank;
    size_t length[XCHECK_MOST_AXES];
} xcheck_shape;

/* Shapes of no axis (one number) to four. */
xcheck_shape xcheck_0d(void);
xcheck_shape xcheck_1d(size_t a);
xcheck_shape xcheck_2d(size_t a, size_t b);
xcheck_shape xcheck_3d(size_t a, size_t b, size_t c);
xcheck_shape xcheck_4d(size_t a, size_t b, size_t c, size_t d);

/* The layer of a tap that has none: embed, final_norm, logits, last_logits, argmax, probs, token_logprobs, top_ids,
 * top_logprobs. */
#define XCHECK_NO_LAYER (-1)
/* The sequence of a row that is padding. */
#define XCHECK_PADDING (-1)

/* ---- the run ------------------------------------------------------------------------------------------------- */

/* Starts a dump at a path where nothing is yet. `producer` names the engine, `architecture` the family of the model: gpt2, llama,
 * qwen3, gemma3, bitnet ... Returns NULL only if there is no memory for it; every function takes NULL, and refuses. */
xcheck_dump *xcheck_create(const char *path, const char *producer, const char *architecture);

/* The engine's version. */
int xcheck_version(xcheck_dump *dump, const char *version);
/* The model's name, and the SHA-256 of its weight files in hexadecimal, or NULL. */
int xcheck_model(xcheck_dump *dump, const char *name, const char *sha256);
/* What changes the numbers: "dtype" ("f32"), "kv_cache" ("f16"), "weights" ("q8_0"), "threads" ... */
int xcheck_setting(xcheck_dump *dump, const char *key, const char *value);
/* How heads lie: "half", RoPE rotates (i, i + d/2), or "interleaved", (2i, 2i + 1). */
int xcheck_rope_pairing(xcheck_dump *dump, const char *pairing);
/* The prompt, before the first pass; `text` may be NULL. Left out, it is what the first pass reads. */
int xcheck_prompt(xcheck_dump *dump, const char *text, const uint32_t *tokens, size_t count);
/* The tokens after the prompt were given, and are not the greedy choice. Of several sequences: those of the latest. */
int xcheck_forced(xcheck_dump *dump);
/* The greedy continuation: one token after the prompt and one after each later pass. */
int xcheck_generated(xcheck_dump *dump, const uint32_t *tokens, size_t count);

/* Of several sequences (version 2): adds one, before the first pass, in place of xcheck_prompt. They count from 0. `name` and `text`
 * may be NULL. */
int xcheck_sequence(xcheck_dump *dump, const char *name, const char *text, const uint32_t *tokens, size_t count);
/* The greedy continuation of one of them. */
int xcheck_generated_of(xcheck_dump *dump, size_t sequence, const uint32_t *tokens, size_t count);

/* ---- passes -------------------------------------------------------------------------------------------------- */

/* Begins a forward pass over `count` tokens, of which the first is at `position`: where the pass before stopped. */
int xcheck_pass(xcheck_dump *dump, const uint32_t *tokens, size_t count, size_t position);
/* The same of several sequences: whose each row is (XCHECK_PADDING: nobody's), and at which position of it. */
int xcheck_pass_of(xcheck_dump *dump, const uint32_t *tokens, const int *sequence, const size_t *position, size_t count);
/* What attention sees along the axis `key` in this pass, if that is not all that the cache has been given, in its order: of
 * `slots` keys whose each is, and at which position. `entries` is 0, or the number of entries of a batch, each with `slots`. */
int xcheck_keys(xcheck_dump *dump, size_t entries, size_t slots, const int *sequence, const size_t *position);
/* The temperature of the `probs` of this pass; 1 if it is not said. */
int xcheck_temperature(xcheck_dump *dump, double temperature);

/* ---- values -------------------------------------------------------------------------------------------------- */

/* Writes a value of this pass. `data` is read before the function returns. */
int xcheck_tap(xcheck_dump *dump, const char *tap, int layer, xcheck_dtype dtype, xcheck_shape shape, const void *data);

/* What may be said besides; NULL and 0 where there is nothing to say. In C: xcheck_options options = {0}; */
typedef struct {
    const char *axes;     /* what the axes are, where they are not the tap's: "head,token,head_dim"; version 2, if several stand for
                             one: "token,kv_head,group,head_dim" */
    const char *computed; /* version 2: the type that values were rounded to before they were stored in a longer one: "bf16" */
    const size_t *rows;   /* version 2: the rows of the pass that the array holds, in ascending order, if not all */
    size_t n_rows;
    double step; /* version 2: what log-probabilities are multiples of, where they were written with few decimals: 0.0001 */
} xcheck_options;
int xcheck_tap_with(xcheck_dump *dump, const char *tap, int layer, xcheck_dtype dtype, xcheck_shape shape,
                    const void *data, const xcheck_options *options);

/* Version 2: writes an array that is of several taps, a fused projection: stored once, under a name of your own. */
int xcheck_array(xcheck_dump *dump, const char *name, int layer, xcheck_dtype dtype, xcheck_shape shape, const void *data);
/* A tap that is a part of the array that was written last: seen as of shape `of`, cut from `start` to before `end`, each with a number
 * for each axis of it. `options` may be NULL. */
int xcheck_part(xcheck_dump *dump, const char *tap, xcheck_shape of, const size_t *start, const size_t *end,
                const xcheck_options *options);

/* ---- the end ------------------------------------------------------------------------------------------------- */

/* Writes what is left and gives the dump its name. Afterwards it takes nothing more. */
int xcheck_close(xcheck_dump *dump);
/* The first error, or "" if there was none. It lives as long as the dump. */
const char *xcheck_error(const xcheck_dump *dump);
/* Frees it. What was not closed, or could not be, is removed. */
void xcheck_free(xcheck_dump *dump);

#ifdef __cplusplus
}
#endif
#endif /* XCHECK_DUMP_H */

/* ============================================================================================================== */

#if defined(XCHECK_DUMP_IMPLEMENTATION) && !defined(XCHECK_DUMP_IMPLEMENTED)
#define XCHECK_DUMP_IMPLEMENTED

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifdef _WIN32
#include <direct.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the taps: the table of docs/reference/dump-format.md --------------------------------------------------------------- */

typedef enum { XCHECK__LAYER, XCHECK__PASS } xcheck__scope;
typedef struct {
    const char *name;
    xcheck__scope scope;
    int is_tokens; /* token ids, not numbers */
    const char *axes;
} xcheck__tap;

static const xcheck__tap xcheck__taps[] = {
    {"embed", XCHECK__PASS, 0, "token,hidden"},
    {"altup_projected", XCHECK__PASS, 0, "token,hidden"},
    {"altup_streams", XCHECK__PASS, 0, "token,hidden"},
    {"predict_router", XCHECK__LAYER, 0, "token,hidden"},
    {"predict_coefs", XCHECK__LAYER, 0, "token,hidden"},
    {"altup_predicted", XCHECK__LAYER, 0, "token,hidden"},
    {"attn_norm", XCHECK__LAYER, 0, "token,hidden"},
    {"mixer_in", XCHECK__LAYER, 0, "token,hidden"},
    {"conv_in", XCHECK__LAYER, 0, "token,hidden"},
    {"mixer_gate", XCHECK__LAYER, 0, "token,hidden"},
    {"beta_logit", XCHECK__LAYER, 0, "token,head"},
    {"decay_logit", XCHECK__LAYER, 0, "token,head"},
    {"conv_out", XCHECK__LAYER, 0, "token,hidden"},
    {"conv_act", XCHECK__LAYER, 0, "token,hidden"},
    {"step_size", XCHECK__LAYER, 0, "token,head"},
    {"q_latent", XCHECK__LAYER, 0, "token,hidden"},
    {"q_latent_norm", XCHECK__LAYER, 0, "token,hidden"},
    {"q", XCHECK__LAYER, 0, "token,head,head_dim"},
    {"k", XCHECK__LAYER, 0, "token,kv_head,head_dim"},
    {"v", XCHECK__LAYER, 0, "token,kv_head,head_dim"},
    {"attn_gate", XCHECK__LAYER, 0, "token,hidden"},
    {"kv_latent", XCHECK__LAYER, 0, "token,hidden"},
    {"kv_latent_norm", XCHECK__LAYER, 0, "token,hidden"},
    {"q_norm", XCHECK__LAYER, 0, "token,head,head_dim"},
    {"k_norm", XCHECK__LAYER, 0, "token,kv_head,head_dim"},
    {"v_norm", XCHECK__LAYER, 0, "token,kv_head,head_dim"},
    {"q_rope", XCHECK__LAYER, 0, "token,head,head_dim"},
    {"k_rope", XCHECK__LAYER, 0, "token,kv_head,head_dim"},
    {"q_scaled", XCHECK__LAYER, 0, "token,head,head_dim"},
    {"q_rope_norm", XCHECK__LAYER, 0, "token,head,head_dim"},
    {"k_rope_norm", XCHECK__LAYER, 0, "token,kv_head,head_dim"},
    {"k_cache", XCHECK__LAYER, 0, "key,kv_head,head_dim"},
    {"v_cache", XCHECK__LAYER, 0, "key,kv_head,head_dim"},
    {"q_unit", XCHECK__LAYER, 0, "token,hidden"},
    {"k_unit", XCHECK__LAYER, 0, "token,hidden"},
    {"beta", XCHECK__LAYER, 0, "token,head"},
    {"decay", XCHECK__LAYER, 0, "token,head"},
    {"recurrent_state", XCHECK__LAYER, 0, "head,head_dim,state"},
    {"k_expanded", XCHECK__LAYER, 0, "key,head,head_dim"},
    {"v_expanded", XCHECK__LAYER, 0, "key,head,head_dim"},
    {"attn_scores", XCHECK__LAYER, 0, "head,token,key"},
    {"attn_weights", XCHECK__LAYER, 0, "head,token,key"},
    {"attn_latent", XCHECK__LAYER, 0, "token,head,head_dim"},
    {"attn_context", XCHECK__LAYER, 0, "token,hidden"},
    {"attn_gated", XCHECK__LAYER, 0, "token,hidden"},
    {"recurrent_out", XCHECK__LAYER, 0, "token,hidden"},
    {"recurrent_norm", XCHECK__LAYER, 0, "token,hidden"},
    {"mixer_out", XCHECK__LAYER, 0, "token,hidden"},
    {"conv_gated", XCHECK__LAYER, 0, "token,hidden"},
    {"attn_sub_norm", XCHECK__LAYER, 0, "token,hidden"},
    {"attn_out", XCHECK__LAYER, 0, "token,hidden"},
    {"attn_post_norm", XCHECK__LAYER, 0, "token,hidden"},
    {"attn_residual", XCHECK__LAYER, 0, "token,hidden"},
    {"laurel_low", XCHECK__LAYER, 0, "token,hidden"},
    {"laurel_high", XCHECK__LAYER, 0, "token,hidden"},
    {"laurel_norm", XCHECK__LAYER, 0, "token,hidden"},
    {"laurel_out", XCHECK__LAYER, 0, "token,hidden"},
    {"laurel_residual", XCHECK__LAYER, 0, "token,hidden"},
    {"ffn_norm", XCHECK__LAYER, 0, "token,hidden"},
    {"router_norm", XCHECK__LAYER, 0, "token,hidden"},
    {"router_logits", XCHECK__LAYER, 0, "token,expert"},
    {"expert_scores", XCHECK__LAYER, 0, "token,expert"},
    {"experts", XCHECK__LAYER, 1, "token,chosen"},
    {"expert_weights", XCHECK__LAYER, 0, "token,chosen"},
    {"expert_norm", XCHECK__LAYER, 0, "token,hidden"},
    {"expert_latent", XCHECK__LAYER, 0, "token,hidden"},
    {"expert_in", XCHECK__LAYER, 0, "token,chosen,hidden"},
    {"expert_gate", XCHECK__LAYER, 0, "token,chosen,ffn"},
    {"expert_up", XCHECK__LAYER, 0, "token,chosen,ffn"},
    {"expert_act", XCHECK__LAYER, 0, "token,chosen,ffn"},
    {"expert_out", XCHECK__LAYER, 0, "token,chosen,hidden"},
    {"routed_latent", XCHECK__LAYER, 0, "token,hidden"},
    {"routed_out", XCHECK__LAYER, 0, "token,hidden"},
    {"routed_post_norm", XCHECK__LAYER, 0, "token,hidden"},
    {"shared_gate", XCHECK__LAYER, 0, "token,ffn"},
    {"shared_up", XCHECK__LAYER, 0, "token,ffn"},
    {"shared_act", XCHECK__LAYER, 0, "token,ffn"},
    {"shared_out", XCHECK__LAYER, 0, "token,hidden"},
    {"shared_post_norm", XCHECK__LAYER, 0, "token,hidden"},
    {"shared_logit", XCHECK__LAYER, 0, "token"},
    {"shared_weight", XCHECK__LAYER, 0, "token"},
    {"ffn_gate", XCHECK__LAYER, 0, "token,ffn"},
    {"ffn_sparse", XCHECK__LAYER, 0, "token,ffn"},
    {"ffn_up", XCHECK__LAYER, 0, "token,ffn"},
    {"ffn_act", XCHECK__LAYER, 0, "token,ffn"},
    {"ffn_sub_norm", XCHECK__LAYER, 0, "token,ffn"},
    {"ffn_out", XCHECK__LAYER, 0, "token,hidden"},
    {"ffn_post_norm", XCHECK__LAYER, 0, "token,hidden"},
    {"ffn_residual", XCHECK__LAYER, 0, "token,hidden"},
    {"correct_router", XCHECK__LAYER, 0, "token,hidden"},
    {"correct_coefs", XCHECK__LAYER, 0, "token,hidden"},
    {"altup_corrected", XCHECK__LAYER, 0, "token,hidden"},
    {"altup_active", XCHECK__LAYER, 0, "token,hidden"},
    {"layer_input", XCHECK__LAYER, 0, "token,ffn"},
    {"layer_gate", XCHECK__LAYER, 0, "token,ffn"},
    {"layer_act", XCHECK__LAYER, 0, "token,ffn"},
    {"layer_out", XCHECK__LAYER, 0, "token,hidden"},
    {"layer_post_norm", XCHECK__LAYER, 0, "token,hidden"},
    {"block_out", XCHECK__LAYER, 0, "token,hidden"},
    {"altup_unembedded", XCHECK__PASS, 0, "token,hidden"},
    {"altup_mean", XCHECK__PASS, 0, "token,hidden"},
    {"final_norm", XCHECK__PASS, 0, "token,hidden"},
    {"logits", XCHECK__PASS, 0, "token,vocab"},
    {"last_logits", XCHECK__PASS, 0, "vocab"},
    {"argmax", XCHECK__PASS, 1, ""},
    {"probs", XCHECK__PASS, 0, "vocab"},
    {"token_logprobs", XCHECK__PASS, 0, "token"},
    {"top_ids", XCHECK__PASS, 1, "token,rank"},
    {"top_logprobs", XCHECK__PASS, 0, "token,rank"},
};
enum { XCHECK__TAPS = sizeof xcheck__taps / sizeof *xcheck__taps };

static const char *const xcheck__axes[] = {"batch",    "token",  "head", "group", "kv_head",
                                           "head_dim", "hidden", "ffn",  "key",   "vocab",   "rank",
                                           "expert",   "chosen", "state"};
enum { XCHECK__AXES = sizeof xcheck__axes / sizeof *xcheck__axes };
enum { XCHECK__BATCH, XCHECK__TOKEN, XCHECK__HEAD, XCHECK__GROUP, XCHECK__KV_HEAD, XCHECK__HEAD_DIM, XCHECK__HIDDEN };

/* By xcheck_dtype: the contract's name, safetensors' and NumPy's, the bytes of an element. NumPy has no bf16: its bits are kept. */
typedef struct {
    const char *name, *safetensors, *npy;
    size_t bytes;
} xcheck__type;
static const xcheck__type xcheck__types[] = {{"f32", "F32", "<f4", 4},   {"f64", "F64", "<f8", 8}, {"f16", "F16", "<f2", 2},
                                             {"bf16", "BF16", "<u2", 2}, {"u32", "U32", "<u4", 4}, {"i32", "I32", "<i4", 4}};

/* ---- what a dump is while it is written ------------------------------------------------------------------------ */

typedef struct {
    char *text;
    size_t length, room;
} xcheck__text;

/* An array of the file: where it is among the elements of its width. */
typedef struct {
    char *key;
    xcheck_dtype dtype;
    xcheck_shape shape;
    uint64_t offset, bytes;
} xcheck__entry;

/* A tap that this pass has, by its number in the table. */
typedef struct {
    int tap, layer;
} xcheck__place;

typedef struct {
    char *name, *text; /* NULL: none */
    uint32_t *tokens, *generated;
    size_t n_tokens, n_generated, read; /* read: the position that comes next */
    size_t followed; /* the last position whose token has to be known: log-probabilities of it were given */
    int is_generated, is_forced;
} xcheck__sequence;

/* Of whom a row is, and where. */
typedef struct {
    int sequence;
    size_t position;
} xcheck__row;

/* Ids of likely tokens or their log-probabilities, of a pass: what both have to have in common. */
typedef struct {
    int is_there;
    xcheck_shape shape;
    size_t *rows, n_rows; /* NULL: all */
} xcheck__top;

/* What was stored last, of which xcheck_part speaks. */
typedef struct {
    char *file;
    int layer;
    xcheck_dtype dtype;
    size_t elements;
} xcheck__stored;

/* Elements of 8, 4 and 2 bytes, which follow each other in the file so that each is aligned. */
enum { XCHECK__WIDTHS = 3 };

struct xcheck_dump {
    char error[512];
    int is_closed, has_error, is_file, is_version_2, has_sequences;
    char *path, *part;
    char *producer, *version, *architecture, *model, *sha256;
    const char *pairing;
    xcheck__text settings, passes, rows; /* JSON, without what encloses it */
    xcheck__sequence *sequences;         /* the prompt is the only one, unless has_sequences */
    size_t n_sequences;
    size_t n_passes, pass_rows, pass_sequences; /* of the pass that is being written */
    size_t pass_entries;                        /* the first array of this pass */
    int has_keys, has_temperature;
    xcheck__row *pass_places; /* of each row */
    xcheck__top tops[2];
    xcheck__place *places;
    size_t n_places, room_places;
    xcheck__stored stored;
    FILE *spools[XCHECK__WIDTHS];
    char *spool_paths[XCHECK__WIDTHS];
    uint64_t spooled[XCHECK__WIDTHS];
    xcheck__entry *entries; /* in a folder: the files, to remove them if it is not closed */
    size_t n_entries, room_entries;
};

static int xcheck__fail(xcheck_dump *d, const char *format, ...) {
    if (d && !d->has_error) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(d->error, sizeof d->error, format, arguments);
        va_end(arguments);
        d->has_error = 1;
    }
    return 1;
}

static int xcheck__out_of_memory(xcheck_dump *d) {
    return xcheck__fail(d, "out of memory; nothing more is written to the dump");
}

/* Whether nothing more is taken: after an error, or the end. */
static int xcheck__is_over(xcheck_dump *d) {
    if (!d || d->has_error) return 1;
    if (d->is_closed) return xcheck__fail(d, "the dump is closed and takes nothing more; create another");
    return 0;
}

/* Room for one more element of `bytes` in an array that grows. */
static int xcheck__grow(xcheck_dump *d, void **array, size_t *room, size_t count, size_t bytes) {
    void *larger;
    size_t wanted = *room ? *room * 2 : 16;
    if (count < *room) return 0;
    if (wanted > SIZE_MAX / bytes || !(larger = realloc(*array, wanted * bytes))) return xcheck__out_of_memory(d);
    *array = larger;
    *room = wanted;
    return 0;
}

static char *xcheck__copy(xcheck_dump *d, const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = (char *)malloc(bytes);
    if (!copy) xcheck__out_of_memory(d);
    else memcpy(copy, text, bytes);
    return copy;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

static int xcheck__add_bytes(xcheck_dump *d, xcheck__text *to, const char *bytes, size_t count) {
    if (count > SIZE_MAX / 4 || to->length > SIZE_MAX / 4) return xcheck__out_of_memory(d);
    if (to->length + count + 1 > to->room) {
        size_t room = (to->length + count + 1) * 2;
        char *larger = (char *)realloc(to->text, room);
        if (!larger) return xcheck__out_of_memory(d);
        to->text = larger;
        to->room = room;
    }
    memcpy(to->text + to->length, bytes, count);
    to->length += count;
    to->text[to->length] = 0;
    return 0;
}

static int xcheck__add(xcheck_dump *d, xcheck__text *to, const char *text) {
    return xcheck__add_bytes(d, to, text, strlen(text));
}

/* A short piece: numbers, and names of the tables above. */
static int xcheck__addf(xcheck_dump *d, xcheck__text *to, const char *format, ...) {
    char piece[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(piece, sizeof piece, format, arguments);
    va_end(arguments);
    return xcheck__add(d, to, piece);
}

/* A number, with the point that JSON has whatever the engine's locale puts there. */
static int xcheck__add_number(xcheck_dump *d, xcheck__text *to, double number) {
    static const char digits[] = "0123456789";
    size_t start = to->length;
    char *point;
    if (xcheck__addf(d, to, "%.9g", number)) return 1;
    point = to->text + start + strspn(to->text + start, digits);
    if (*point && *point != 'e') {
        char *rest = point + strcspn(point, digits);
        *point++ = '.';
        memmove(point, rest, strlen(rest) + 1);
        to->length -= (size_t)(rest - point);
    }
    return 0;
}

/* The characters of a JSON string, without its quotes. */
static int xcheck__add_escaped(xcheck_dump *d, xcheck__text *to, const char *text) {
    const char *plain = text;
    for (;; text++) {
        unsigned char c = (unsigned char)*text;
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        if (xcheck__add_bytes(d, to, plain, (size_t)(text - plain))) return 1;
        if (!c) return 0;
        if (c < 0x20 ? xcheck__addf(d, to, "\\u%04x", c) : xcheck__addf(d, to, "\\%c", c)) return 1;
        plain = text + 1;
    }
}

static int xcheck__add_string(xcheck_dump *d, xcheck__text *to, const char *text) {
    return xcheck__add(d, to, "\"") || xcheck__add_escaped(d, to, text) || xcheck__add(d, to, "\"");
}

/* ,"name":"text", or nothing where there is no text. */
static int xcheck__add_field(xcheck_dump *d, xcheck__text *to, const char *name, const char *text) {
    if (!text) return 0;
    return xcheck__addf(d, to, ",\"%s\":", name) || xcheck__add_string(d, to, text);
}

static int xcheck__add_sizes(xcheck_dump *d, xcheck__text *to, const size_t *numbers, size_t count) {
    size_t i;
    if (xcheck__add(d, to, "[")) return 1;
    for (i = 0; i < count; i++)
        if (xcheck__addf(d, to, i ? ",%zu" : "%zu", numbers[i])) return 1;
    return xcheck__add(d, to, "]");
}

static int xcheck__add_tokens(xcheck_dump *d, xcheck__text *to, const uint32_t *tokens, size_t count) {
    size_t i;
    if (xcheck__add(d, to, "[")) return 1;
    for (i = 0; i < count; i++)
        if (xcheck__addf(d, to, i ? ",%lu" : "%lu", (unsigned long)tokens[i])) return 1;
    return xcheck__add(d, to, "]");
}

/* Whose rows are: numbers, and null for padding. */
static int xcheck__add_owners(xcheck_dump *d, xcheck__text *to, const int *sequence, size_t count) {
    size_t i;
    if (xcheck__add(d, to, "[")) return 1;
    for (i = 0; i < count; i++) {
        if (i && xcheck__add(d, to, ",")) return 1;
        if (sequence[i] < 0 ? xcheck__add(d, to, "null") : xcheck__addf(d, to, "%d", sequence[i])) return 1;
    }
    return xcheck__add(d, to, "]");
}

/* How many bytes a character of UTF-8 has that begins here; 0 if none does. */
static size_t xcheck__utf8_length(const unsigned char *at) {
    size_t bytes = *at < 0x80 ? 1 : *at >= 0xF0 ? 4 : *at >= 0xE0 ? 3 : 2, i;
    unsigned long code = bytes == 1 ? *at : *at & (0x7Fu >> bytes);
    if ((*at >= 0x80 && *at < 0xC2) || *at > 0xF4) return 0;
    for (i = 1; i < bytes; i++) {
        if ((at[i] & 0xC0) != 0x80) return 0;
        code = code << 6 | (at[i] & 0x3Fu);
    }
    if ((bytes == 3 && code < 0x800) || (bytes == 4 && (code < 0x10000 || code > 0x10FFFF))) return 0;
    return code >= 0xD800 && code <= 0xDFFF ? 0 : bytes;
}

/* One text that is no UTF-8 would make the whole manifest unreadable. */
static int xcheck__refuse_text(xcheck_dump *d, const char *what, const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    if (!text) return xcheck__fail(d, "%s is NULL; give a text", what);
    while (*at) {
        size_t bytes = xcheck__utf8_length(at);
        if (!bytes)
            return xcheck__fail(d, "%s is not UTF-8 at byte %zu; convert it", what, (size_t)(at - (const unsigned char *)text));
        at += bytes;
    }
    return 0;
}

/* ---- files ----------------------------------------------------------------------------------------------------- */

static int xcheck__fail_io(xcheck_dump *d, const char *what, const char *path) {
    return xcheck__fail(d, "cannot %s %s: %s", what, path, strerror(errno));
}

static char *xcheck__joined(xcheck_dump *d, const char *a, const char *between, const char *b) {
    size_t room = strlen(a) + strlen(between) + strlen(b) + 1;
    char *path = (char *)malloc(room);
    if (!path) xcheck__out_of_memory(d);
    else snprintf(path, room, "%s%s%s", a, between, b);
    return path;
}

static int xcheck__make_folder(const char *path) {
#ifdef _WIN32
    return _mkdir(path);
#else
    return mkdir(path, 0777);
#endif
}

static void xcheck__remove_folder(const char *path) {
#ifdef _WIN32
    _rmdir(path);
#else
    remove(path);
#endif
}

/* Makes the folders that a file inside the dump's folder lies in. */
static int xcheck__make_folders(xcheck_dump *d, char *path) {
    char *slash = path + strlen(d->part) + 1;
    while ((slash = strchr(slash, '/')) != NULL) {
        int is_made;
        *slash = 0;
        is_made = !xcheck__make_folder(path) || errno == EEXIST;
        if (!is_made) xcheck__fail_io(d, "create", path);
        *slash++ = '/';
        if (!is_made) return 1;
    }
    return 0;
}

/* The header of a .npy file: a Python dict, padded so that the elements begin at a multiple of 64. */
static int xcheck__npy_header(xcheck_dump *d, xcheck__text *to, xcheck_dtype dtype, const xcheck_shape *shape) {
    size_t i, padding;
    char preamble[10] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, 0, 0};
    if (xcheck__add_bytes(d, to, preamble, sizeof preamble)) return 1;
    if (xcheck__addf(d, to, "{'descr': '%s', 'fortran_order': False, 'shape': (", xcheck__types[dtype].npy)) return 1;
    for (i = 0; i < shape->rank; i++)
        if (xcheck__addf(d, to, "%zu,", shape->length[i])) return 1;
    if (xcheck__add(d, to, "), }")) return 1;
    for (padding = 63 - to->length % 64; padding; padding--)
        if (xcheck__add(d, to, " ")) return 1;
    if (xcheck__add(d, to, "\n")) return 1;
    to->text[8] = (char)((to->length - 10) & 0xFF);
    to->text[9] = (char)((to->length - 10) >> 8 & 0xFF);
    return 0;
}

/* Two parts, one behind the other, as a file of that path. */
static int xcheck__write_file(xcheck_dump *d, const char *path, const xcheck__text *first, const void *rest, size_t bytes) {
    FILE *file = fopen(path, "wb");
    int is_written;
    if (!file) return xcheck__fail_io(d, "create", path);
    is_written = fwrite(first->text, 1, first->length, file) == first->length;
    is_written = is_written && (!bytes || fwrite(rest, 1, bytes, file) == bytes);
    if (!is_written) xcheck__fail_io(d, "write", path);
    if (fclose(file) && is_written) return xcheck__fail_io(d, "write", path);
    return !is_written;
}

static int xcheck__write_npy(xcheck_dump *d, const xcheck__entry *entry, const void *data) {
    xcheck__text header = {NULL, 0, 0};
    char *file = xcheck__joined(d, d->part, "/", entry->key), *path = file ? xcheck__joined(d, file, "", ".npy") : NULL;
    int failed = !path || xcheck__make_folders(d, path) || xcheck__npy_header(d, &header, entry->dtype, &entry->shape) ||
                 xcheck__write_file(d, path, &header, data, (size_t)entry->bytes);
    free(header.text);
    free(file);
    free(path);
    return failed;
}

static size_t xcheck__width(xcheck_dtype dtype) {
    return xcheck__types[dtype].bytes == 8 ? 0 : xcheck__types[dtype].bytes == 4 ? 1 : 2;
}

/* Elements on their way into a file whose header comes first, and is known at the end. */
static int xcheck__spool(xcheck_dump *d, xcheck__entry *entry, const void *data) {
    size_t width = xcheck__width(entry->dtype);
    if (!d->spools[width]) {
        static const char *const ends[XCHECK__WIDTHS] = {".part8", ".part4", ".part2"};
        d->spool_paths[width] = xcheck__joined(d, d->path, "", ends[width]);
        if (!d->spool_paths[width]) return 1;
        d->spools[width] = fopen(d->spool_paths[width], "w+b");
        if (!d->spools[width]) return xcheck__fail_io(d, "create", d->spool_paths[width]);
    }
    entry->offset = d->spooled[width];
    d->spooled[width] += entry->bytes;
    if (fwrite(data, 1, (size_t)entry->bytes, d->spools[width]) != (size_t)entry->bytes)
        return xcheck__fail_io(d, "write", d->spool_paths[width]);
    return 0;
}

/* Stores an array under a key: p0/l00/q. */
static int xcheck__store(xcheck_dump *d, const char *key, xcheck_dtype dtype, const xcheck_shape *shape, size_t bytes,
                         const void *data) {
    xcheck__entry *entry;
    void *entries = d->entries;
    if (xcheck__grow(d, &entries, &d->room_entries, d->n_entries, sizeof *d->entries)) return 1;
    d->entries = (xcheck__entry *)entries;
    entry = &d->entries[d->n_entries];
    memset(entry, 0, sizeof *entry);
    entry->dtype = dtype;
    entry->shape = *shape;
    entry->bytes = bytes;
    if (!(entry->key = xcheck__copy(d, key))) return 1;
    d->n_entries++;
    return d->is_file ? xcheck__spool(d, entry, data) : xcheck__write_npy(d, entry, data);
}

/* ---- what is refused ------------------------------------------------------------------------------------------- */

static size_t xcheck__least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* How many letters must be changed, left out or put in (Levenshtein). */
static size_t xcheck__distance(const char *a, const char *b) {
    size_t row[33], i, j, length = strlen(b);
    if (length > 32) return SIZE_MAX;
    for (j = 0; j <= length; j++) row[j] = j;
    for (i = 0; a[i]; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (j = 0; j < length; j++) {
            size_t changed = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            row[j + 1] = xcheck__least(changed, xcheck__least(row[j + 1], row[j]) + 1);
        }
    }
    return row[length];
}

/* The number of a tap in the table; -1 if none has that name. */
static int xcheck__find_tap(xcheck_dump *d, const char *name) {
    int i, nearest = 0;
    size_t least = SIZE_MAX;
    if (xcheck__refuse_text(d, "the name of a tap", name)) return -1;
    for (i = 0; i < XCHECK__TAPS; i++) {
        size_t distance = xcheck__distance(name, xcheck__taps[i].name);
        if (!distance) return i;
        if (distance < least) {
            least = distance;
            nearest = i;
        }
    }
    if (!strcmp(name, "generated"))
        xcheck__fail(d, "'generated' is no tap of a pass; give the continuation to xcheck_generated");
    else
        xcheck__fail(d, "no tap is named '%.80s'; did you mean '%s'? docs/reference/dump-format.md lists them all", name,
                     xcheck__taps[nearest].name);
    return -1;
}

enum { XCHECK__MOST_LAYERS = 1 << 16 };

static int xcheck__refuse_layer(xcheck_dump *d, const char *name, int has_layer, int layer) {
    if (has_layer && layer < 0)
        return xcheck__fail(d, "tap '%s' is of a layer; give its number, from 0, in place of %d", name, layer);
    if (!has_layer && layer != XCHECK_NO_LAYER)
        return xcheck__fail(d, "tap '%s' is of no layer; give XCHECK_NO_LAYER in place of %d", name, layer);
    if (layer >= XCHECK__MOST_LAYERS) return xcheck__fail(d, "tap '%s': no model has a layer %d", name, layer);
    return 0;
}

/* "q, layer 3, pass 0", for messages. */
typedef struct {
    char text[120];
} xcheck__name;

static xcheck__name xcheck__place_name(const xcheck_dump *d, const char *tap, int layer) {
    xcheck__name name;
    if (layer < 0) snprintf(name.text, sizeof name.text, "%.40s, pass %zu", tap, d->n_passes - 1);
    else snprintf(name.text, sizeof name.text, "%.40s, layer %d, pass %zu", tap, layer, d->n_passes - 1);
    return name;
}

static int xcheck__refuse_place(xcheck_dump *d, int tap, int layer) {
    const char *name = xcheck__taps[tap].name;
    void *places = d->places;
    size_t i;
    if (!d->n_passes) return xcheck__fail(d, "tap '%s' comes before the first pass; begin one with xcheck_pass", name);
    if (xcheck__refuse_layer(d, name, xcheck__taps[tap].scope == XCHECK__LAYER, layer)) return 1;
    for (i = 0; i < d->n_places; i++)
        if (d->places[i].tap == tap && d->places[i].layer == layer)
            return xcheck__fail(d, "%s comes twice; begin the next pass before its values, or tap it once",
                                xcheck__place_name(d, name, layer).text);
    if (xcheck__grow(d, &places, &d->room_places, d->n_places, sizeof *d->places)) return 1;
    d->places = (xcheck__place *)places;
    d->places[d->n_places].tap = tap;
    d->places[d->n_places++].layer = layer;
    return 0;
}

/* What axes count, by their numbers in the table. */
typedef struct {
    size_t count;
    int axis[XCHECK__AXES];
} xcheck__axis_list;

static int xcheck__position_of(const xcheck__axis_list *axes, int axis) {
    size_t i;
    for (i = 0; i < axes->count; i++)
        if (axes->axis[i] == axis) return (int)i;
    return -1;
}

/* Reads "token,head,head_dim". */
static int xcheck__parse_axes(xcheck_dump *d, const char *place, const char *names, xcheck__axis_list *axes) {
    axes->count = 0;
    while (*names) {
        size_t length = strcspn(names, ", "), i;
        int found = -1;
        for (i = 0; i < XCHECK__AXES; i++)
            if (strlen(xcheck__axes[i]) == length && !strncmp(names, xcheck__axes[i], length)) found = (int)i;
        if (found < 0)
            return xcheck__fail(d, "%s: no axis is named '%.*s'; known: batch, token, head, group, kv_head, head_dim, hidden, "
                                "ffn, key, vocab, rank, expert, chosen", place, (int)xcheck__least(length, 40), names);
        if (xcheck__position_of(axes, found) >= 0)
            return xcheck__fail(d, "%s: axis '%s' is named twice", place, xcheck__axes[found]);
        axes->axis[axes->count++] = found;
        names += length;
        names += strspn(names, ", ");
    }
    return 0;
}

/* Whether the array has an axis, or those that may stand for it. Each that is used is marked. */
static int xcheck__has_axis(const xcheck__axis_list *axes, int wanted, int *used) {
    static const int parts[][4] = {{XCHECK__HEAD, XCHECK__KV_HEAD, XCHECK__GROUP, -1},
                                   {XCHECK__HIDDEN, XCHECK__HEAD, XCHECK__HEAD_DIM, -1},
                                   {XCHECK__HIDDEN, XCHECK__KV_HEAD, XCHECK__GROUP, XCHECK__HEAD_DIM}};
    size_t i, j;
    int at = xcheck__position_of(axes, wanted);
    if (at >= 0) return used[at] = 1;
    for (i = 0; i < sizeof parts / sizeof *parts; i++) {
        int are_there = parts[i][0] == wanted;
        for (j = 1; are_there && j < 4; j++)
            if (parts[i][j] >= 0 && xcheck__position_of(axes, parts[i][j]) < 0) are_there = 0;
        for (j = 1; are_there && j < 4; j++)
            if (parts[i][j] >= 0) used[xcheck__position_of(axes, parts[i][j])] = 1;
        if (are_there) return 1;
    }
    return 0;
}

/* The axes of an array: those that are named, or the tap's own, after a batch where there is one more. */
static int xcheck__find_axes(xcheck_dump *d, const char *place, int tap, const xcheck_shape *shape, const char *named,
                             xcheck__axis_list *axes) {
    xcheck__axis_list own;
    int used[XCHECK_MOST_AXES] = {0};
    size_t i;
    if (xcheck__parse_axes(d, place, xcheck__taps[tap].axes, &own)) return 1;
    if (named && xcheck__parse_axes(d, place, named, axes)) return 1;
    if (!named) {
        int has_batch = shape->rank == own.count + 1 && (d->has_sequences || shape->length[0] == 1);
        axes->count = 0;
        if (has_batch) axes->axis[axes->count++] = XCHECK__BATCH;
        for (i = 0; i < own.count; i++) axes->axis[axes->count++] = own.axis[i];
    }
    if (axes->count != shape->rank)
        return xcheck__fail(d, "%s: %zu axes were given, expected %zu (%s); name others in the option axes", place, shape->rank,
                            axes->count, named ? named : xcheck__taps[tap].axes);
    for (i = 0; i < own.count; i++) {
        if (!xcheck__has_axis(axes, own.axis[i], used))
            return xcheck__fail(d, "%s: its axes (%s) lack '%s'", place, named ? named : "", xcheck__axes[own.axis[i]]);
        if (xcheck__position_of(axes, own.axis[i]) < 0) d->is_version_2 = 1; /* others stand for it */
    }
    for (i = 0; i < axes->count; i++)
        if (!used[i] && shape->length[i] != 1 && !(axes->axis[i] == XCHECK__BATCH && d->has_sequences))
            return xcheck__fail(d, "%s: axis '%s' of length %zu is none of %s (%s)", place, xcheck__axes[axes->axis[i]],
                                shape->length[i], xcheck__taps[tap].name, xcheck__taps[tap].axes);
    return 0;
}

/* Rows must be some of the pass, each once. Their number is left in `count`. */
static int xcheck__refuse_rows(xcheck_dump *d, const char *place, const xcheck_options *options, size_t *count) {
    size_t i;
    *count = d->pass_rows;
    if (!options || (!options->rows && !options->n_rows)) return 0;
    if (!options->rows || !options->n_rows) return xcheck__fail(d, "%s: the option rows is empty; leave it out", place);
    for (i = 0; i < options->n_rows; i++) {
        if (options->rows[i] >= d->pass_rows)
            return xcheck__fail(d, "%s: there is no row %zu in a pass of %zu", place, options->rows[i], d->pass_rows);
        if (i && options->rows[i] <= options->rows[i - 1])
            return xcheck__fail(d, "%s: the option rows has %zu behind %zu; give them in ascending order", place,
                                options->rows[i], options->rows[i - 1]);
    }
    *count = options->n_rows;
    return 0;
}

/* Nothing may be known to follow the last token of a pass: entries of those before it stand for themselves. */
static int xcheck__is_one_less(const xcheck_dump *d, const xcheck_shape *shape, size_t rows, const xcheck_options *options) {
    int is_plain = !options || (!options->rows && !options->axes);
    return is_plain && !d->has_sequences && shape->rank == 1 && shape->length[0] + 1 == rows;
}

/* Axes are as long as the pass says. */
static int xcheck__refuse_lengths(xcheck_dump *d, const char *place, int tap, const xcheck_shape *shape,
                                  const xcheck__axis_list *axes, const xcheck_options *options) {
    int token = xcheck__position_of(axes, XCHECK__TOKEN), batch = xcheck__position_of(axes, XCHECK__BATCH);
    int has_rows = options && options->rows;
    size_t entries = batch < 0 ? 1 : shape->length[batch], rows, i;
    if (xcheck__refuse_rows(d, place, options, &rows)) return 1;
    for (i = 0; i < shape->rank; i++)
        if (!shape->length[i])
            return xcheck__fail(d, "%s: axis '%s' has length 0", place, xcheck__axes[axes->axis[i]]);
    if (has_rows && token < 0) return xcheck__fail(d, "%s: it has no axis token, so it cannot hold some rows", place);
    if (has_rows && entries > 1) return xcheck__fail(d, "%s: the option rows counts rows of the pass; leave out the axis batch", place);
    if (!strcmp(xcheck__taps[tap].name, "token_logprobs") && xcheck__is_one_less(d, shape, rows, options)) return 0;
    if (token >= 0 && (rows % entries || shape->length[token] != rows / entries))
        return xcheck__fail(d, "%s: axis 'token' has length %zu%s, expected %zu: the rows of %s", place, shape->length[token],
                            entries > 1 ? " in each entry of the batch" : "", rows / entries,
                            has_rows ? "the option rows" : "its pass");
    if (xcheck__taps[tap].scope == XCHECK__PASS && token < 0 && entries != d->pass_sequences)
        return xcheck__fail(d, "%s: it has a row for %zu sequences, expected %zu: those that its pass reads", place, entries,
                            d->pass_sequences);
    return 0;
}

static int xcheck__refuse_dtype(xcheck_dump *d, const char *place, int tap, xcheck_dtype dtype, const char *computed) {
    int is_integer = dtype == XCHECK_U32 || dtype == XCHECK_I32;
    if (tap >= 0 && xcheck__taps[tap].is_tokens != is_integer)
        return xcheck__fail(d, "%s: %s is no type for %s", place, xcheck__types[dtype].name,
                            is_integer ? "activations; give f32, f64, f16 or bf16" : "token ids; give u32 or i32");
    if (computed && strcmp(computed, "f32") && strcmp(computed, "f16") && strcmp(computed, "bf16"))
        return xcheck__fail(d, "%s: the option computed is '%.40s', expected f32, f16 or bf16", place, computed);
    return 0;
}

/* Whether a number is a multiple of a step, as exactly as f32 is. What is no number, or larger than steps can be counted, is. */
static int xcheck__is_multiple(double value, double step) {
    double steps = value / step, off, size = value < 0 ? -value : value;
    if (!(steps > -9e15 && steps < 9e15)) return 1;
    off = value - (double)(int64_t)(steps + (steps < 0 ? -0.5 : 0.5)) * step;
    return (off < 0 ? -off : off) <= 1.1920929e-7 * size;
}

/* A step is of log-probabilities, which are multiples of it; readers take none above 0.05. */
static int xcheck__refuse_step(xcheck_dump *d, const char *place, int tap, xcheck_dtype dtype, double step, size_t elements,
                               const void *data) {
    size_t i;
    if (strcmp(xcheck__taps[tap].name, "token_logprobs") && strcmp(xcheck__taps[tap].name, "top_logprobs"))
        return xcheck__fail(d, "%s: the option step is of token_logprobs and top_logprobs alone", place);
    if (!(step > 0 && step <= 0.05))
        return xcheck__fail(d, "%s: the option step is %g, expected a positive number of at most 0.05", place, step);
    if (dtype != XCHECK_F32 && dtype != XCHECK_F64)
        return xcheck__fail(d, "%s: values with the option step are f32 or f64", place);
    for (i = 0; i < elements; i++) {
        double value = dtype == XCHECK_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
        if (!xcheck__is_multiple(value, step))
            return xcheck__fail(d, "%s: %g is no multiple of the option step, %g", place, value, step);
    }
    return 0;
}

/* The elements of an array, and its bytes. */
static int xcheck__sizes(xcheck_dump *d, const char *name, xcheck_dtype dtype, const xcheck_shape *shape, size_t *elements,
                         size_t *bytes) {
    size_t i;
    if ((unsigned)dtype > (unsigned)XCHECK_I32) return xcheck__fail(d, "%.40s: %d is no xcheck_dtype", name, (int)dtype);
    if (shape->rank > XCHECK_MOST_AXES)
        return xcheck__fail(d, "%.40s: %zu axes, at most %d are taken", name, shape->rank, (int)XCHECK_MOST_AXES);
    *elements = 1;
    for (i = 0; i < shape->rank; i++) {
        if (shape->length[i] && *elements > SIZE_MAX / 8 / shape->length[i])
            return xcheck__fail(d, "%.40s: a shape of more bytes than memory has", name);
        *elements *= shape->length[i];
    }
    *bytes = *elements * xcheck__types[dtype].bytes;
    return 0;
}

/* ---- the run ---------------------------------------------------------------------------------------------------- */

xcheck_shape xcheck_0d(void) {
    xcheck_shape shape;
    memset(&shape, 0, sizeof shape);
    return shape;
}

xcheck_shape xcheck_1d(size_t a) {
    xcheck_shape shape = xcheck_0d();
    shape.rank = 1;
    shape.length[0] = a;
    return shape;
}

xcheck_shape xcheck_2d(size_t a, size_t b) {
    xcheck_shape shape = xcheck_1d(a);
    shape.rank = 2;
    shape.length[1] = b;
    return shape;
}

xcheck_shape xcheck_3d(size_t a, size_t b, size_t c) {
    xcheck_shape shape = xcheck_2d(a, b);
    shape.rank = 3;
    shape.length[2] = c;
    return shape;
}

xcheck_shape xcheck_4d(size_t a, size_t b, size_t c, size_t d) {
    xcheck_shape shape = xcheck_3d(a, b, c);
    shape.rank = 4;
    shape.length[3] = d;
    return shape;
}

static int xcheck__set(xcheck_dump *d, char **field, const char *what, const char *text) {
    char *copy;
    if (xcheck__is_over(d) || xcheck__refuse_text(d, what, text)) return 1;
    if (!(copy = xcheck__copy(d, text))) return 1;
    free(*field);
    *field = copy;
    return 0;
}

static int xcheck__exists(const char *path) {
    struct stat found;
    return !stat(path, &found);
}

/* A folder is made at once; the files that become one file, when something comes for them. */
static int xcheck__start(xcheck_dump *d, const char *path) {
    static const char end[] = ".safetensors";
    size_t length;
    uint16_t one = 1;
    if (!*(const uint8_t *)&one) return xcheck__fail(d, "this machine is not little-endian, as arrays of a dump are");
    if (!path || !*path) return xcheck__fail(d, "the path of the dump is empty");
    if (!(d->path = xcheck__copy(d, path))) return 1;
    length = strlen(path);
    while (length > 1 && d->path[length - 1] == '/') d->path[--length] = 0;
    if (xcheck__exists(d->path)) return xcheck__fail(d, "%.400s already exists; name another or remove it", path);
    d->is_file = length >= sizeof end - 1 && !strcmp(d->path + length - (sizeof end - 1), end);
    if (!(d->part = xcheck__joined(d, d->path, "", ".part"))) return 1;
    if (d->is_file) { /* it is filled at the end: a folder that is not there is told before the long work */
        FILE *file = fopen(d->part, "wb");
        return !file || fclose(file) ? xcheck__fail_io(d, "create", d->part) : 0;
    }
    if (!xcheck__make_folder(d->part)) return 0;
    if (errno == EEXIST)
        xcheck__fail(d, "%.400s is there, of a run that is not over or was killed; remove it", d->part);
    else
        xcheck__fail_io(d, "create", d->part);
    free(d->part); /* it is another's: nothing of it is removed */
    d->part = NULL;
    return 1;
}

xcheck_dump *xcheck_create(const char *path, const char *producer, const char *architecture) {
    xcheck_dump *d = (xcheck_dump *)calloc(1, sizeof *d);
    if (!d) return NULL;
    if (!xcheck__set(d, &d->producer, "the producer", producer) &&
        !xcheck__set(d, &d->architecture, "the architecture", architecture)) {
        if (!*producer || !*architecture) xcheck__fail(d, "the producer or the architecture is empty; a dump has to say both");
        else xcheck__start(d, path);
    }
    return d;
}

int xcheck_version(xcheck_dump *d, const char *version) {
    return !d || xcheck__set(d, &d->version, "the version", version);
}

int xcheck_model(xcheck_dump *d, const char *name, const char *sha256) {
    if (!d || xcheck__set(d, &d->model, "the model's name", name)) return 1;
    if (!sha256) return 0;
    if (strlen(sha256) != 64 || strspn(sha256, "0123456789abcdef") != 64)
        return xcheck__fail(d, "the model's sha256 is '%.80s', expected 64 digits, 0 to 9 and a to f", sha256);
    return xcheck__set(d, &d->sha256, "the model's sha256", sha256);
}

int xcheck_setting(xcheck_dump *d, const char *key, const char *value) {
    if (xcheck__is_over(d) || xcheck__refuse_text(d, "the key of a setting", key)) return 1;
    if (xcheck__refuse_text(d, "the value of a setting", value)) return 1;
    return (d->settings.length && xcheck__add(d, &d->settings, ",")) || xcheck__add_string(d, &d->settings, key) ||
           xcheck__add(d, &d->settings, ":") || xcheck__add_string(d, &d->settings, value);
}

int xcheck_rope_pairing(xcheck_dump *d, const char *pairing) {
    if (xcheck__is_over(d) || xcheck__refuse_text(d, "rope_pairing", pairing)) return 1;
    if (!strcmp(pairing, "half")) d->pairing = "half";
    else if (!strcmp(pairing, "interleaved")) d->pairing = "interleaved";
    else return xcheck__fail(d, "rope_pairing is '%.40s', expected half or interleaved", pairing);
    return 0;
}

static uint32_t *xcheck__copy_tokens(xcheck_dump *d, const uint32_t *tokens, size_t count) {
    uint32_t *copy = NULL;
    if (count > SIZE_MAX / sizeof *copy || !(copy = (uint32_t *)malloc(count ? count * sizeof *copy : 1)))
        xcheck__out_of_memory(d);
    else if (count)
        memcpy(copy, tokens, count * sizeof *copy);
    return copy;
}

static int xcheck__add_sequence(xcheck_dump *d, const char *name, const char *text, const uint32_t *tokens, size_t count) {
    xcheck__sequence *sequences, *added;
    if (!tokens || !count) return xcheck__fail(d, "a prompt without tokens; give at least one");
    if (d->n_sequences >= SIZE_MAX / sizeof *sequences - 1) return xcheck__out_of_memory(d);
    sequences = (xcheck__sequence *)realloc(d->sequences, (d->n_sequences + 1) * sizeof *sequences);
    if (!sequences) return xcheck__out_of_memory(d);
    d->sequences = sequences;
    added = &sequences[d->n_sequences++];
    memset(added, 0, sizeof *added);
    if (name && xcheck__set(d, &added->name, "the name of a sequence", name)) return 1;
    if (text && xcheck__set(d, &added->text, "a prompt", text)) return 1;
    added->n_tokens = count;
    return !(added->tokens = xcheck__copy_tokens(d, tokens, count));
}

int xcheck_prompt(xcheck_dump *d, const char *text, const uint32_t *tokens, size_t count) {
    if (xcheck__is_over(d)) return 1;
    if (d->n_passes) return xcheck__fail(d, "the prompt comes after the first pass; give it before");
    if (d->has_sequences) return xcheck__fail(d, "there are sequences, each with a prompt; leave out xcheck_prompt");
    if (d->n_sequences) return xcheck__fail(d, "the prompt comes twice; for several sequences call xcheck_sequence alone");
    return xcheck__add_sequence(d, NULL, text, tokens, count);
}

int xcheck_sequence(xcheck_dump *d, const char *name, const char *text, const uint32_t *tokens, size_t count) {
    if (xcheck__is_over(d)) return 1;
    if (d->n_passes) return xcheck__fail(d, "a sequence comes after the first pass; give all before");
    if (d->n_sequences && !d->has_sequences) return xcheck__fail(d, "there is a prompt; leave out xcheck_prompt for sequences");
    d->has_sequences = d->is_version_2 = 1;
    return xcheck__add_sequence(d, name, text, tokens, count);
}

static int xcheck__continuation(xcheck_dump *d, size_t sequence, const uint32_t *tokens, size_t count) {
    xcheck__sequence *of;
    if (sequence >= d->n_sequences) return xcheck__fail(d, "there is no sequence %zu; there are %zu", sequence, d->n_sequences);
    of = &d->sequences[sequence];
    if (of->is_generated) return xcheck__fail(d, "the continuation comes twice; give the whole of it once");
    if (!tokens && count) return xcheck__fail(d, "the continuation is NULL; give its tokens");
    of->n_generated = count;
    of->is_generated = 1;
    return !(of->generated = xcheck__copy_tokens(d, tokens, count));
}

int xcheck_generated(xcheck_dump *d, const uint32_t *tokens, size_t count) {
    if (xcheck__is_over(d)) return 1;
    if (d->has_sequences) return xcheck__fail(d, "whose continuation is it? of several sequences call xcheck_generated_of");
    if (!d->n_sequences) return xcheck__fail(d, "the continuation comes before the prompt; begin a pass or call xcheck_prompt first");
    return xcheck__continuation(d, 0, tokens, count);
}

int xcheck_generated_of(xcheck_dump *d, size_t sequence, const uint32_t *tokens, size_t count) {
    if (xcheck__is_over(d)) return 1;
    if (!d->has_sequences) return xcheck__fail(d, "there is one sequence alone; call xcheck_generated");
    return xcheck__continuation(d, sequence, tokens, count);
}

int xcheck_forced(xcheck_dump *d) {
    if (xcheck__is_over(d)) return 1;
    if (!d->n_sequences) return xcheck__fail(d, "xcheck_forced comes before the prompt; call xcheck_prompt or xcheck_sequence first");
    d->sequences[d->n_sequences - 1].is_forced = 1;
    return 0;
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

/* A row of a sequence goes on where its earlier ones stopped, and reads its prompt. */
static int xcheck__read_row(xcheck_dump *d, size_t row, size_t sequence, size_t position, uint32_t token) {
    xcheck__sequence *of;
    if (sequence >= d->n_sequences)
        return xcheck__fail(d, "pass %zu, row %zu: there is no sequence %zu; there are %zu", d->n_passes, row, sequence,
                            d->n_sequences);
    of = &d->sequences[sequence];
    if (position != of->read)
        return xcheck__fail(d, "pass %zu, row %zu: sequence %zu is at position %zu, expected %zu: where its earlier rows stopped",
                            d->n_passes, row, sequence, position, of->read);
    if (of->read < of->n_tokens && token != of->tokens[of->read])
        return xcheck__fail(d, "pass %zu, row %zu reads token %lu at position %zu, the prompt has %lu there", d->n_passes, row,
                            (unsigned long)token, position, (unsigned long)of->tokens[of->read]);
    of->read++;
    return 0;
}

/* Ids of likely tokens and their log-probabilities come together. */
static int xcheck__end_pass(xcheck_dump *d) {
    xcheck__top *ids = &d->tops[0], *logprobs = &d->tops[1];
    int is_same = ids->is_there == logprobs->is_there && ids->n_rows == logprobs->n_rows;
    is_same = is_same && ids->shape.rank == logprobs->shape.rank;
    is_same = is_same && !memcmp(ids->shape.length, logprobs->shape.length, ids->shape.rank * sizeof *ids->shape.length);
    is_same = is_same && !ids->rows == !logprobs->rows;
    if (is_same && ids->rows) is_same = !memcmp(ids->rows, logprobs->rows, ids->n_rows * sizeof *ids->rows);
    free(ids->rows), free(logprobs->rows);
    memset(d->tops, 0, sizeof d->tops);
    if (is_same) return 0;
    return xcheck__fail(d, "pass %zu: top_ids and top_logprobs come together, of the same shape and rows", d->n_passes - 1);
}

/* Room for whose the rows of a pass are. */
static int xcheck__make_places(xcheck_dump *d, size_t count) {
    free(d->pass_places);
    d->pass_places = count > SIZE_MAX / sizeof *d->pass_places ? NULL : (xcheck__row *)malloc(count * sizeof *d->pass_places);
    return d->pass_places ? 0 : xcheck__out_of_memory(d);
}

/* What begins a pass, whatever it reads. The one before is complete. */
static int xcheck__begin_pass(xcheck_dump *d, const uint32_t *tokens, size_t count) {
    if (d->n_passes && xcheck__end_pass(d)) return 1;
    if ((d->n_passes && xcheck__add(d, &d->passes, "},")) || xcheck__add(d, &d->passes, "{\"tokens\":")) return 1;
    if (xcheck__add_tokens(d, &d->passes, tokens, count)) return 1;
    d->n_passes++;
    d->pass_rows = count;
    d->n_places = 0;
    d->pass_entries = d->n_entries;
    d->has_keys = d->has_temperature = 0;
    free(d->stored.file);
    d->stored.file = NULL;
    return 0;
}

int xcheck_pass(xcheck_dump *d, const uint32_t *tokens, size_t count, size_t position) {
    size_t i;
    if (xcheck__is_over(d)) return 1;
    if (d->has_sequences) return xcheck__fail(d, "whose are the rows of the pass? of several sequences call xcheck_pass_of");
    if (!tokens || !count) return xcheck__fail(d, "pass %zu reads no tokens; give at least one", d->n_passes);
    if (!d->n_sequences && xcheck__add_sequence(d, NULL, NULL, tokens, count)) return 1;
    if (position != d->sequences[0].read)
        return xcheck__fail(d, "pass %zu is at position %zu, expected %zu: where the pass before stopped", d->n_passes, position,
                            d->sequences[0].read);
    if (xcheck__make_places(d, count)) return 1;
    for (i = 0; i < count; i++) {
        if (xcheck__read_row(d, i, 0, position + i, tokens[i])) return 1;
        d->pass_places[i].sequence = 0;
        d->pass_places[i].position = position + i;
    }
    d->pass_sequences = 1;
    return xcheck__begin_pass(d, tokens, count) || xcheck__addf(d, &d->passes, ",\"position\":%zu", position);
}

int xcheck_pass_of(xcheck_dump *d, const uint32_t *tokens, const int *sequence, const size_t *position, size_t count) {
    size_t i, j;
    if (xcheck__is_over(d)) return 1;
    if (!d->has_sequences) return xcheck__fail(d, "there are no sequences; add them with xcheck_sequence, or call xcheck_pass");
    if (!tokens || !sequence || !position || !count) return xcheck__fail(d, "pass %zu reads no rows; give at least one", d->n_passes);
    if (xcheck__make_places(d, count)) return 1;
    d->pass_sequences = 0;
    for (i = 0; i < count; i++) {
        d->pass_places[i].sequence = sequence[i];
        d->pass_places[i].position = position[i];
        if (sequence[i] < 0) continue;
        for (j = 0; j < i && sequence[j] != sequence[i]; j++) {}
        d->pass_sequences += j == i;
        if (xcheck__read_row(d, i, (size_t)sequence[i], position[i], tokens[i])) return 1;
    }
    if (!d->pass_sequences) return xcheck__fail(d, "pass %zu reads padding alone; leave it out", d->n_passes);
    return xcheck__begin_pass(d, tokens, count) || xcheck__add(d, &d->passes, ",\"sequence\":") ||
           xcheck__add_owners(d, &d->passes, sequence, count) || xcheck__add(d, &d->passes, ",\"position\":") ||
           xcheck__add_sizes(d, &d->passes, position, count);
}

static int xcheck__add_slots(xcheck_dump *d, size_t slots, const int *sequence, const size_t *position) {
    return xcheck__add(d, &d->passes, "{\"sequence\":") || xcheck__add_owners(d, &d->passes, sequence, slots) ||
           xcheck__add(d, &d->passes, ",\"position\":") || xcheck__add_sizes(d, &d->passes, position, slots) ||
           xcheck__add(d, &d->passes, "}");
}

int xcheck_keys(xcheck_dump *d, size_t entries, size_t slots, const int *sequence, const size_t *position) {
    size_t i;
    if (xcheck__is_over(d)) return 1;
    if (!d->n_passes) return xcheck__fail(d, "keys come before the first pass; begin it with xcheck_pass_of");
    if (!d->has_sequences) return xcheck__fail(d, "keys are of several sequences; add these with xcheck_sequence");
    if (d->has_keys) return xcheck__fail(d, "pass %zu: its keys come twice; give those of all entries at once", d->n_passes - 1);
    if (!sequence || !position || !slots) return xcheck__fail(d, "pass %zu: its keys are none; leave them out", d->n_passes - 1);
    d->has_keys = 1;
    if (xcheck__add(d, &d->passes, ",\"keys\":")) return 1;
    if (!entries) return xcheck__add_slots(d, slots, sequence, position);
    for (i = 0; i < entries; i++) {
        if (xcheck__add(d, &d->passes, i ? "," : "[")) return 1;
        if (xcheck__add_slots(d, slots, sequence + i * slots, position + i * slots)) return 1;
    }
    return xcheck__add(d, &d->passes, "]");
}

int xcheck_temperature(xcheck_dump *d, double temperature) {
    if (xcheck__is_over(d)) return 1;
    if (!d->n_passes) return xcheck__fail(d, "a temperature comes before the first pass; begin it with xcheck_pass");
    if (!(temperature > 0 && temperature <= 1e30)) return xcheck__fail(d, "a temperature of %g, expected a positive number", temperature);
    if (d->has_temperature) return xcheck__fail(d, "pass %zu: its temperature comes twice", d->n_passes - 1);
    d->has_temperature = 1;
    return xcheck__add(d, &d->passes, ",\"temperature\":") || xcheck__add_number(d, &d->passes, temperature);
}

/* ---- values ------------------------------------------------------------------------------------------------------- */

/* p0/l00/q, p0/logits */
static char *xcheck__key(xcheck_dump *d, const char *name, int layer) {
    char folder[64];
    if (layer < 0) snprintf(folder, sizeof folder, "p%zu", d->n_passes - 1);
    else snprintf(folder, sizeof folder, "p%zu/l%02d", d->n_passes - 1, layer);
    return xcheck__joined(d, folder, "/", name);
}

/* The row of the manifest, but for "of" and what closes it. */
static int xcheck__add_row(xcheck_dump *d, int tap, int layer, xcheck_dtype dtype, const size_t *shape, size_t rank,
                           const char *key, const xcheck_options *options) {
    xcheck__text *to = &d->rows;
    if ((to->length && xcheck__add(d, to, ",\n")) || xcheck__addf(d, to, "{\"tap\":\"%s\"", xcheck__taps[tap].name)) return 1;
    if (xcheck__addf(d, to, ",\"pass\":%zu", d->n_passes - 1)) return 1;
    if (layer >= 0 && xcheck__addf(d, to, ",\"layer\":%d", layer)) return 1;
    if (xcheck__addf(d, to, ",\"dtype\":\"%s\",\"shape\":", xcheck__types[dtype].name)) return 1;
    if (xcheck__add_sizes(d, to, shape, rank) || xcheck__add(d, to, ",\"file\":\"")) return 1;
    if (xcheck__add_escaped(d, to, key) || xcheck__add(d, to, ".npy\"")) return 1;
    if (!options) return 0;
    if (options->rows) {
        d->is_version_2 = 1;
        if (xcheck__add(d, to, ",\"rows\":") || xcheck__add_sizes(d, to, options->rows, options->n_rows)) return 1;
    }
    if (options->computed || options->step) d->is_version_2 = 1;
    if (options->step && (xcheck__add(d, to, ",\"step\":") || xcheck__add_number(d, to, options->step))) return 1;
    return xcheck__add_field(d, to, "computed", options->computed);
}

static int xcheck__add_axes(xcheck_dump *d, const xcheck__axis_list *axes) {
    size_t i;
    if (xcheck__add(d, &d->rows, ",\"axes\":[")) return 1;
    for (i = 0; i < axes->count; i++)
        if (xcheck__addf(d, &d->rows, i ? ",\"%s\"" : "\"%s\"", xcheck__axes[axes->axis[i]])) return 1;
    return xcheck__add(d, &d->rows, "]");
}

/* The tokens whose log-probabilities these are have to be known in the end. */
static void xcheck__note_followed(xcheck_dump *d, const xcheck_shape *shape, const xcheck_options *options) {
    int has_rows = options && options->rows;
    size_t i, rows = has_rows ? options->n_rows : d->pass_rows;
    if (xcheck__is_one_less(d, shape, rows, options)) rows--;
    for (i = 0; i < rows; i++) {
        const xcheck__row *row = &d->pass_places[has_rows ? options->rows[i] : i];
        xcheck__sequence *of = row->sequence < 0 ? NULL : &d->sequences[row->sequence];
        if (of && of->followed <= row->position) of->followed = row->position + 1;
    }
}

static int xcheck__note_top(xcheck_dump *d, xcheck__top *top, const xcheck_shape *shape, const xcheck_options *options) {
    top->is_there = 1;
    top->shape = *shape;
    if (!options || !options->rows) return 0;
    top->n_rows = options->n_rows;
    if (!(top->rows = (size_t *)malloc(top->n_rows * sizeof *top->rows))) return xcheck__out_of_memory(d);
    memcpy(top->rows, options->rows, top->n_rows * sizeof *top->rows);
    return 0;
}

/* Log-probabilities are looked at again: at the end of their pass, and of the run. */
static int xcheck__note(xcheck_dump *d, int tap, const xcheck_shape *shape, const xcheck_options *options) {
    const char *name = xcheck__taps[tap].name;
    if (!strcmp(name, "token_logprobs")) xcheck__note_followed(d, shape, options);
    if (!strcmp(name, "top_ids")) return xcheck__note_top(d, &d->tops[0], shape, options);
    return !strcmp(name, "top_logprobs") && xcheck__note_top(d, &d->tops[1], shape, options);
}

/* What is the same of a whole array and of a part: its place, type, axes and lengths. */
static int xcheck__refuse_value(xcheck_dump *d, int tap, int layer, xcheck_dtype dtype, const xcheck_shape *shape,
                                const xcheck_options *options, xcheck__axis_list *axes) {
    xcheck__name place;
    if (xcheck__refuse_place(d, tap, layer)) return 1;
    place = xcheck__place_name(d, xcheck__taps[tap].name, layer);
    return xcheck__refuse_dtype(d, place.text, tap, dtype, options ? options->computed : NULL) ||
           xcheck__find_axes(d, place.text, tap, shape, options ? options->axes : NULL, axes) ||
           xcheck__refuse_lengths(d, place.text, tap, shape, axes, options) || xcheck__note(d, tap, shape, options);
}

int xcheck_tap_with(xcheck_dump *d, const char *name, int layer, xcheck_dtype dtype, xcheck_shape shape, const void *data,
                    const xcheck_options *options) {
    xcheck__axis_list axes;
    size_t elements, bytes;
    char *key;
    int tap, failed;
    if (xcheck__is_over(d) || (tap = xcheck__find_tap(d, name)) < 0) return 1;
    if (xcheck__sizes(d, name, dtype, &shape, &elements, &bytes)) return 1;
    if (xcheck__refuse_value(d, tap, layer, dtype, &shape, options, &axes)) return 1;
    if (!data) return xcheck__fail(d, "%s: data is NULL", xcheck__place_name(d, name, layer).text);
    if (options && options->step &&
        xcheck__refuse_step(d, xcheck__place_name(d, name, layer).text, tap, dtype, options->step, elements, data))
        return 1;
    if (!(key = xcheck__key(d, name, layer))) return 1;
    failed = xcheck__store(d, key, dtype, &shape, bytes, data) ||
             xcheck__add_row(d, tap, layer, dtype, shape.length, shape.rank, key, options) ||
             (options && options->axes && xcheck__add_axes(d, &axes)) || xcheck__add(d, &d->rows, "}");
    free(key);
    return failed;
}

int xcheck_tap(xcheck_dump *d, const char *name, int layer, xcheck_dtype dtype, xcheck_shape shape, const void *data) {
    return xcheck_tap_with(d, name, layer, dtype, shape, data, NULL);
}

/* A name of an array that is no tap's becomes a path: letters, digits and underscores. */
static int xcheck__refuse_array_name(xcheck_dump *d, const char *name, int layer) {
    size_t i, length = name ? strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") : 0;
    char *key;
    if (!length || length > 40 || name[length])
        return xcheck__fail(d, "an array is named '%.80s', expected 1 to 40 letters, digits and _", name ? name : "");
    for (i = 0; i < XCHECK__TAPS; i++)
        if (!strcmp(name, xcheck__taps[i].name))
            return xcheck__fail(d, "an array is named '%s' as a tap is; give it another name", name);
    if (!d->n_passes) return xcheck__fail(d, "array '%s' comes before the first pass; begin one with xcheck_pass", name);
    if (layer < XCHECK_NO_LAYER || layer >= XCHECK__MOST_LAYERS) return xcheck__fail(d, "array '%s': no model has a layer %d", name, layer);
    if (!(key = xcheck__key(d, name, layer))) return 1;
    for (i = d->pass_entries; i < d->n_entries && strcmp(key, d->entries[i].key); i++) {}
    free(key);
    return i < d->n_entries && xcheck__fail(d, "array %s comes twice; store it once", xcheck__place_name(d, name, layer).text);
}

int xcheck_array(xcheck_dump *d, const char *name, int layer, xcheck_dtype dtype, xcheck_shape shape, const void *data) {
    size_t bytes;
    if (xcheck__is_over(d) || xcheck__refuse_array_name(d, name, layer)) return 1;
    if (xcheck__sizes(d, name, dtype, &shape, &d->stored.elements, &bytes)) return 1;
    if (!data || !bytes) return xcheck__fail(d, "array %s holds nothing", xcheck__place_name(d, name, layer).text);
    free(d->stored.file);
    d->stored.layer = layer;
    d->stored.dtype = dtype;
    d->is_version_2 = 1;
    if (!(d->stored.file = xcheck__key(d, name, layer))) return 1;
    return xcheck__store(d, d->stored.file, dtype, &shape, bytes, data);
}

/* What is left of each axis, in `shape`. */
static int xcheck__refuse_cut(xcheck_dump *d, const char *tap, const xcheck_shape *of, const size_t *start, const size_t *end,
                              xcheck_shape *shape) {
    size_t i, elements, bytes;
    if (xcheck__sizes(d, tap, d->stored.dtype, of, &elements, &bytes)) return 1;
    if (elements != d->stored.elements)
        return xcheck__fail(d, "tap '%s': the array has %zu elements, which cannot be seen as a shape of %zu", tap,
                            d->stored.elements, elements);
    if (!start || !end) return xcheck__fail(d, "tap '%s': start or end is NULL; give a number for each axis", tap);
    *shape = *of;
    for (i = 0; i < of->rank; i++) {
        if (start[i] >= end[i] || end[i] > of->length[i])
            return xcheck__fail(d, "tap '%s' is cut from %zu to %zu along axis %zu, which is no part of its length %zu", tap,
                                start[i], end[i], i, of->length[i]);
        shape->length[i] = end[i] - start[i];
    }
    return 0;
}

int xcheck_part(xcheck_dump *d, const char *name, xcheck_shape of, const size_t *start, const size_t *end,
                const xcheck_options *options) {
    xcheck__axis_list axes;
    xcheck_shape shape;
    int tap, layer;
    if (xcheck__is_over(d) || (tap = xcheck__find_tap(d, name)) < 0) return 1;
    if (!d->stored.file) return xcheck__fail(d, "tap '%s' is a part of no array; write one in this pass with xcheck_array", name);
    layer = d->stored.layer;
    if (options && options->step) return xcheck__fail(d, "tap '%s': a part of an array has no step", name);
    if (xcheck__refuse_cut(d, name, &of, start, end, &shape)) return 1;
    if (xcheck__refuse_value(d, tap, layer, d->stored.dtype, &shape, options, &axes)) return 1;
    return xcheck__add_row(d, tap, layer, d->stored.dtype, shape.length, shape.rank, d->stored.file, options) ||
           (options && options->axes && xcheck__add_axes(d, &axes)) || xcheck__add(d, &d->rows, ",\"of\":{\"shape\":") ||
           xcheck__add_sizes(d, &d->rows, of.length, of.rank) || xcheck__add(d, &d->rows, ",\"start\":") ||
           xcheck__add_sizes(d, &d->rows, start, of.rank) || xcheck__add(d, &d->rows, ",\"end\":") ||
           xcheck__add_sizes(d, &d->rows, end, of.rank) || xcheck__add(d, &d->rows, "}}");
}

/* ---- the end ------------------------------------------------------------------------------------------------------ */

static int xcheck__add_input(xcheck_dump *d, xcheck__text *to, const xcheck__sequence *sequence) {
    if (xcheck__add(d, to, "{\"tokens\":") || xcheck__add_tokens(d, to, sequence->tokens, sequence->n_tokens)) return 1;
    if (xcheck__add_field(d, to, "prompt", sequence->text)) return 1;
    return xcheck__add_field(d, to, "decode", sequence->is_forced ? "forced" : "greedy");
}

static int xcheck__add_continuation(xcheck_dump *d, xcheck__text *to, const xcheck__sequence *sequence) {
    if (!sequence->is_generated) return 0;
    return xcheck__add(d, to, ",\"generated\":") || xcheck__add_tokens(d, to, sequence->generated, sequence->n_generated);
}

static int xcheck__add_sequences(xcheck_dump *d, xcheck__text *to) {
    size_t i;
    if (!d->has_sequences)
        return xcheck__add_input(d, to, d->sequences) || xcheck__add(d, to, "}") || xcheck__add_continuation(d, to, d->sequences);
    if (xcheck__add(d, to, "{\"sequences\":[")) return 1;
    for (i = 0; i < d->n_sequences; i++) {
        const xcheck__sequence *sequence = &d->sequences[i];
        if ((i && xcheck__add(d, to, ",")) || xcheck__add_input(d, to, sequence)) return 1;
        if (xcheck__add_field(d, to, "name", sequence->name) || xcheck__add_continuation(d, to, sequence)) return 1;
        if (xcheck__add(d, to, "}")) return 1;
    }
    return xcheck__add(d, to, "]}");
}

static int xcheck__manifest(xcheck_dump *d, xcheck__text *to) {
    if (xcheck__addf(d, to, "{\"format\":\"xcheck-dump\",\"version\":%d,\"producer\":{\"name\":", d->is_version_2 ? 2 : 1)) return 1;
    if (xcheck__add_string(d, to, d->producer) || xcheck__add_field(d, to, "version", d->version)) return 1;
    if (xcheck__add(d, to, ",\"settings\":{") || (d->settings.length && xcheck__add(d, to, d->settings.text))) return 1;
    if (xcheck__add(d, to, "}},\"model\":{\"architecture\":") || xcheck__add_string(d, to, d->architecture)) return 1;
    if (xcheck__add_field(d, to, "name", d->model) || xcheck__add_field(d, to, "sha256", d->sha256)) return 1;
    if (xcheck__add(d, to, "},\"layout\":{")) return 1;
    if (d->pairing && xcheck__addf(d, to, "\"rope_pairing\":\"%s\"", d->pairing)) return 1;
    if (xcheck__add(d, to, "},\"input\":") || xcheck__add_sequences(d, to)) return 1;
    if (xcheck__add(d, to, ",\n\"passes\":[") || xcheck__add(d, to, d->passes.text)) return 1;
    return xcheck__add(d, to, "}],\n\"tensors\":[") || xcheck__add(d, to, d->rows.text) || xcheck__add(d, to, "]}\n");
}

/* What stands before the elements of a safetensors file, without its length. */
static int xcheck__safetensors_header(xcheck_dump *d, xcheck__text *to, const char *manifest) {
    uint64_t base[XCHECK__WIDTHS];
    size_t i;
    base[0] = 0;
    base[1] = d->spooled[0];
    base[2] = base[1] + d->spooled[1];
    if (xcheck__add(d, to, "{\"__metadata__\":{\"xcheck\":") || xcheck__add_string(d, to, manifest) || xcheck__add(d, to, "}")) return 1;
    for (i = 0; i < d->n_entries; i++) {
        const xcheck__entry *entry = &d->entries[i];
        unsigned long long start = base[xcheck__width(entry->dtype)] + entry->offset;
        if (xcheck__add(d, to, ",") || xcheck__add_string(d, to, entry->key)) return 1;
        if (xcheck__addf(d, to, ":{\"dtype\":\"%s\",\"shape\":", xcheck__types[entry->dtype].safetensors)) return 1;
        if (xcheck__add_sizes(d, to, entry->shape.length, entry->shape.rank)) return 1;
        if (xcheck__addf(d, to, ",\"data_offsets\":[%llu,%llu]}", start, start + entry->bytes)) return 1;
    }
    if (xcheck__add(d, to, "}")) return 1;
    while (to->length % 8)
        if (xcheck__add(d, to, " ")) return 1;
    /* The limit of safetensors' own readers. */
    if (to->length > 100000000) return xcheck__fail(d, "the header would have %zu bytes, readers take 100 MB; write a folder", to->length);
    return 0;
}

static int xcheck__copy_spool(xcheck_dump *d, size_t width, FILE *to) {
    char block[1 << 14];
    FILE *from = d->spools[width];
    uint64_t left = d->spooled[width];
    if (!from) return 0;
    if (fflush(from)) return xcheck__fail_io(d, "write", d->spool_paths[width]);
    rewind(from);
    while (left) {
        size_t bytes = left < sizeof block ? (size_t)left : sizeof block;
        if (fread(block, 1, bytes, from) != bytes) return xcheck__fail_io(d, "read", d->spool_paths[width]);
        if (fwrite(block, 1, bytes, to) != bytes) return xcheck__fail_io(d, "write", d->part);
        left -= bytes;
    }
    return 0;
}

static int xcheck__write_safetensors(xcheck_dump *d, const char *manifest) {
    xcheck__text header = {NULL, 0, 0};
    unsigned char length[8];
    FILE *file = NULL;
    size_t i;
    int failed = xcheck__safetensors_header(d, &header, manifest);
    for (i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)header.length >> 8 * i & 0xFF);
    if (!failed && !(file = fopen(d->part, "wb"))) failed = xcheck__fail_io(d, "create", d->part);
    if (!failed && (fwrite(length, 1, 8, file) != 8 || fwrite(header.text, 1, header.length, file) != header.length))
        failed = xcheck__fail_io(d, "write", d->part);
    for (i = 0; i < XCHECK__WIDTHS && !failed; i++) failed = xcheck__copy_spool(d, i, file);
    if (file && fclose(file) && !failed) failed = xcheck__fail_io(d, "write", d->part);
    free(header.text);
    return failed;
}

static int xcheck__write_folder(xcheck_dump *d, const xcheck__text *manifest) {
    char *path = xcheck__joined(d, d->part, "/", "manifest.json");
    int failed = !path || xcheck__write_file(d, path, manifest, NULL, 0);
    free(path);
    return failed;
}

/* What readers refuse, and is known in the end alone: what was read and follows, and by which names. */
static int xcheck__refuse_sequences(xcheck_dump *d) {
    size_t i, j;
    for (i = 0; i < d->n_sequences; i++) {
        const xcheck__sequence *one = &d->sequences[i];
        size_t known = one->n_tokens + one->n_generated > one->read ? one->n_tokens + one->n_generated : one->read;
        char name[24], other[24];
        if (!one->read) return xcheck__fail(d, "sequence %zu is read by no pass; leave it out", i);
        if (one->followed >= known)
            return xcheck__fail(d, "token_logprobs: an entry is of the token at position %zu of sequence %zu, and none is known "
                                "there; give one entry less, or the continuation", one->followed, i);
        snprintf(name, sizeof name, "%zu", i);
        for (j = 0; j < i; j++) {
            const xcheck__sequence *earlier = &d->sequences[j];
            snprintf(other, sizeof other, "%zu", j);
            if (!strcmp(one->name ? one->name : name, earlier->name ? earlier->name : other))
                return xcheck__fail(d, "sequences %zu and %zu have one name; one without goes by its number", j, i);
        }
    }
    return 0;
}

int xcheck_close(xcheck_dump *d) {
    xcheck__text manifest = {NULL, 0, 0};
    int failed;
    if (xcheck__is_over(d)) return 1;
    if (!d->rows.length) return xcheck__fail(d, "the dump holds no value; tap at least one");
    if (xcheck__end_pass(d) || xcheck__refuse_sequences(d)) return 1;
    failed = xcheck__manifest(d, &manifest) ||
             (d->is_file ? xcheck__write_safetensors(d, manifest.text) : xcheck__write_folder(d, &manifest));
    free(manifest.text);
    if (failed) return 1;
    if (rename(d->part, d->path)) return xcheck__fail_io(d, "rename to", d->path);
    d->is_closed = 1;
    return 0;
}

const char *xcheck_error(const xcheck_dump *d) {
    return d ? d->error : "out of memory; there is no dump";
}

/* Removes the files of a folder that was not closed, then its folders from the inside out. */
static void xcheck__remove_part(xcheck_dump *d) {
    size_t i, pass;
    char *path;
    if (d->is_file) {
        remove(d->part);
        return;
    }
    for (i = 0; i <= d->n_entries; i++) {
        const char *key = i < d->n_entries ? d->entries[i].key : "manifest";
        if (!(path = (char *)malloc(strlen(d->part) + strlen(key) + 16))) return;
        sprintf(path, "%s/%s%s", d->part, key, i < d->n_entries ? ".npy" : ".json");
        remove(path);
        free(path);
    }
    /* A folder goes with the last file in it; before that its removal fails. */
    for (i = 0; i < d->n_entries; i++) {
        if (!(path = xcheck__joined(NULL, d->part, "/", d->entries[i].key))) return;
        *strrchr(path, '/') = 0;
        if (strlen(path) > strlen(d->part)) xcheck__remove_folder(path);
        free(path);
    }
    for (pass = 0; pass < d->n_passes; pass++) {
        char folder[32];
        snprintf(folder, sizeof folder, "p%zu", pass);
        if (!(path = xcheck__joined(NULL, d->part, "/", folder))) return;
        xcheck__remove_folder(path);
        free(path);
    }
    xcheck__remove_folder(d->part);
}

void xcheck_free(xcheck_dump *d) {
    size_t i;
    if (!d) return;
    for (i = 0; i < XCHECK__WIDTHS; i++) {
        if (d->spools[i]) {
            fclose(d->spools[i]);
            remove(d->spool_paths[i]);
        }
        free(d->spool_paths[i]);
    }
    if (!d->is_closed && d->part) xcheck__remove_part(d);
    for (i = 0; i < d->n_entries; i++) free(d->entries[i].key);
    for (i = 0; i < d->n_sequences; i++) {
        free(d->sequences[i].name);
        free(d->sequences[i].text);
        free(d->sequences[i].tokens);
        free(d->sequences[i].generated);
    }
    free(d->path), free(d->part), free(d->producer), free(d->version), free(d->architecture), free(d->model), free(d->sha256);
    free(d->settings.text), free(d->passes.text), free(d->rows.text);
    free(d->pass_places), free(d->tops[0].rows), free(d->tops[1].rows);
    free(d->sequences), free(d->places), free(d->entries), free(d->stored.file);
    free(d);
}

#ifdef __cplusplus
}
#endif
#endif /* XCHECK_DUMP_IMPLEMENTATION */
