/* What the writer in C refuses, and what it leaves: run with an empty folder as its argument. tests/writers.rs builds it. It
 * also writes the dump `version2.safetensors` there, which the test compares with the same one by the writer in Rust. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Numbers as an engine has them that has called setlocale in Germany, whether or not this machine knows that. */
static int print_german(char *text, size_t room, const char *format, va_list arguments) {
    int length = vsnprintf(text, room, format, arguments);
    char *point = strstr(format, "%.9g") ? strchr(text, '.') : NULL;
    if (point) *point = ',';
    return length;
}
#undef vsnprintf
#define vsnprintf print_german

#define XCHECK_DUMP_IMPLEMENTATION
#include "xcheck_dump.h"

static const char *folder;
static int failures;
static const float ones[64] = {1};
static const uint32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};

static void path_of(char *path, size_t room, const char *name) {
    snprintf(path, room, "%s/%s", folder, name);
}

static void expect(int is_so, const char *name, const char *problem) {
    if (is_so) return;
    printf("%s: %s\n", name, problem);
    failures++;
}

static int is_there(const char *path) {
    struct stat found;
    return !stat(path, &found);
}

/* ---- refusals --------------------------------------------------------------------------------------------------- */

typedef void (*Act)(xcheck_dump *dump);

/* Three tokens were begun; the act is refused with a message that holds `expected`, and nothing is left. */
static void refused_in(const char *container, const char *name, Act act, const char *expected) {
    char path[512], part[520];
    xcheck_dump *dump;
    path_of(path, sizeof path, container);
    snprintf(part, sizeof part, "%s.part", path);
    dump = xcheck_create(path, "test.c", "llama");
    xcheck_pass(dump, ids, 3, 0);
    xcheck_tap(dump, "embed", XCHECK_NO_LAYER, XCHECK_F32, xcheck_2d(3, 4), ones);
    expect(!*xcheck_error(dump), name, xcheck_error(dump));
    act(dump);
    if (!strstr(xcheck_error(dump), expected)) {
        printf("%s: '%s' is not in: %s\n", name, expected, xcheck_error(dump));
        failures++;
    }
    expect(xcheck_tap(dump, "block_out", 0, XCHECK_F32, xcheck_2d(3, 4), ones) == 1, name, "something is taken afterwards");
    expect(xcheck_close(dump) == 1, name, "it is closed although something was refused");
    xcheck_free(dump);
    expect(!is_there(path) && !is_there(part), name, "something is left");
}

static void refused(const char *name, Act act, const char *expected) {
    refused_in("refused.safetensors", name, act, expected);
    refused_in("refused", name, act, expected);
}

static void unknown_tap(xcheck_dump *d) { xcheck_tap(d, "attn_nrom", 0, XCHECK_F32, xcheck_2d(3, 4), ones); }
static void long_tap(xcheck_dump *d) {
    char name[2000];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    xcheck_tap(d, name, 0, XCHECK_F32, xcheck_2d(3, 4), ones);
}
static void no_tap(xcheck_dump *d) { xcheck_tap(d, NULL, 0, XCHECK_F32, xcheck_2d(3, 4), ones); }
static void no_layer(xcheck_dump *d) { xcheck_tap(d, "q", XCHECK_NO_LAYER, XCHECK_F32, xcheck_3d(3, 2, 2), ones); }
static void odd_layer(xcheck_dump *d) { xcheck_tap(d, "logits", 1, XCHECK_F32, xcheck_2d(3, 4), ones); }
static void high_layer(xcheck_dump *d) { xcheck_tap(d, "q", 70000, XCHECK_F32, xcheck_3d(3, 2, 2), ones); }
static void tokens(xcheck_dump *d) { xcheck_tap(d, "attn_norm", 0, XCHECK_F32, xcheck_2d(2, 4), ones); }
static void rank(xcheck_dump *d) { xcheck_tap(d, "q", 0, XCHECK_F32, xcheck_2d(3, 4), ones); }
static void empty(xcheck_dump *d) { xcheck_tap(d, "attn_norm", 0, XCHECK_F32, xcheck_2d(3, 0), ones); }
static void twice(xcheck_dump *d) { xcheck_tap(d, "embed", XCHECK_NO_LAYER, XCHECK_F32, xcheck_2d(3, 4), ones); }
static void null(xcheck_dump *d) { xcheck_tap(d, "attn_norm", 0, XCHECK_F32, xcheck_2d(3, 4), NULL); }
static void huge(xcheck_dump *d) { xcheck_tap(d, "attn_norm", 0, XCHECK_F32, xcheck_2d(3, SIZE_MAX / 2), ones); }
static void dtype(xcheck_dump *d) { xcheck_tap(d, "attn_norm", 0, (xcheck_dtype)17, xcheck_2d(3, 4), ones); }
static void floats(xcheck_dump *d) { xcheck_tap(d, "argmax", XCHECK_NO_LAYER, XCHECK_F32, xcheck_0d(), ones); }
static void integers(xcheck_dump *d) { xcheck_tap(d, "attn_norm", 0, XCHECK_I32, xcheck_2d(1, 3), ids); }
static void generated(xcheck_dump *d) { xcheck_tap(d, "generated", XCHECK_NO_LAYER, XCHECK_U32, xcheck_1d(3), ids); }
static void position(xcheck_dump *d) { xcheck_pass(d, ids, 1, 4); }
static void no_tokens(xcheck_dump *d) { xcheck_pass(d, ids, 0, 3); }
static void pairing(xcheck_dump *d) { xcheck_rope_pairing(d, "halves"); }
static void utf8(xcheck_dump *d) { xcheck_setting(d, "name", "caf\xe9"); }
static void hash(xcheck_dump *d) { xcheck_model(d, "m", "12"); }
static void late_prompt(xcheck_dump *d) { xcheck_prompt(d, NULL, ids, 3); }
static void of_several(xcheck_dump *d) { xcheck_generated_of(d, 0, ids, 1); }
static void again(xcheck_dump *d) { xcheck_generated(d, ids, 1), xcheck_generated(d, ids, 1); }
static void heat(xcheck_dump *d) { xcheck_temperature(d, 0); }
static void no_array(xcheck_dump *d) { xcheck_part(d, "q", xcheck_1d(1), NULL, NULL, NULL); }
static void array_name(xcheck_dump *d) { xcheck_array(d, "../qkv", 0, XCHECK_F32, xcheck_2d(3, 4), ones); }
static void array_twice(xcheck_dump *d) {
    xcheck_array(d, "qkv", 0, XCHECK_F32, xcheck_2d(3, 4), ones);
    xcheck_array(d, "qkv", 0, XCHECK_F32, xcheck_2d(3, 4), ones);
}
static void cut(xcheck_dump *d) {
    static const size_t start[] = {0, 2, 0}, end[] = {3, 4, 2};
    xcheck_array(d, "qkv", 0, XCHECK_F32, xcheck_2d(3, 6), ones);
    xcheck_part(d, "q", xcheck_3d(3, 3, 2), start, end, NULL);
}
static void with(xcheck_dump *d, const char *axes, const char *computed, const size_t *rows, size_t n_rows) {
    xcheck_options options;
    options.axes = axes;
    options.computed = computed;
    options.rows = rows;
    options.n_rows = n_rows;
    options.step = 0;
    xcheck_tap_with(d, "attn_norm", 0, XCHECK_F32, xcheck_2d(3, 4), ones, &options);
}
static void stepped(xcheck_dump *d, const char *tap, double step, float value) {
    xcheck_options options = {NULL, NULL, NULL, 0, 0};
    float values[2];
    values[0] = values[1] = value;
    options.step = step;
    xcheck_tap_with(d, tap, strcmp(tap, "attn_norm") ? XCHECK_NO_LAYER : 0, XCHECK_F32, xcheck_1d(2), values, &options);
}
static void step_off(xcheck_dump *d) { stepped(d, "token_logprobs", 0.01, -1.255f); }
static void step_coarse(xcheck_dump *d) { stepped(d, "token_logprobs", 1e6, 0); }
static void step_negative(xcheck_dump *d) { stepped(d, "token_logprobs", -0.01, 0); }
static void step_elsewhere(xcheck_dump *d) {
    xcheck_options options = {NULL, NULL, NULL, 0, 0.01};
    xcheck_tap_with(d, "attn_norm", 0, XCHECK_F32, xcheck_2d(3, 4), ones, &options);
}
static void computed(xcheck_dump *d) { with(d, NULL, "int8", NULL, 0); }
static void axis(xcheck_dump *d) { with(d, "token,hiden", NULL, NULL, 0); }
static void axis_twice(xcheck_dump *d) { with(d, "token,token", NULL, NULL, 0); }
static void all_axes(xcheck_dump *d) { with(d, "batch,token,head,group,kv_head,head_dim,hidden,ffn,key,vocab", NULL, NULL, 0); }
static void lacking(xcheck_dump *d) { with(d, "token,ffn", NULL, NULL, 0); }
static void rows(xcheck_dump *d) {
    static const size_t descending[] = {1, 0};
    with(d, NULL, NULL, descending, 2);
}
static void row(xcheck_dump *d) {
    static const size_t beyond[] = {1, 3};
    with(d, NULL, NULL, beyond, 2);
}

static void refusals(void) {
    refused("unknown_tap", unknown_tap, "no tap is named 'attn_nrom'; did you mean 'attn_norm'?");
    refused("long_tap", long_tap, "no tap is named 'aaa");
    refused("no_tap", no_tap, "is NULL");
    refused("no_layer", no_layer, "tap 'q' is of a layer; give its number");
    refused("odd_layer", odd_layer, "tap 'logits' is of no layer; give XCHECK_NO_LAYER in place of 1");
    refused("high_layer", high_layer, "no model has a layer 70000");
    refused("tokens", tokens, "attn_norm, layer 0, pass 0: axis 'token' has length 2, expected 3");
    refused("rank", rank, "2 axes were given, expected 3 (token,head,head_dim)");
    refused("empty", empty, "axis 'hidden' has length 0");
    refused("twice", twice, "embed, pass 0 comes twice");
    refused("null", null, "data is NULL");
    refused("huge", huge, "more bytes than memory has");
    refused("dtype", dtype, "17 is no xcheck_dtype");
    refused("floats", floats, "f32 is no type for token ids; give u32 or i32");
    refused("integers", integers, "i32 is no type for activations");
    refused("generated", generated, "xcheck_generated");
    refused("position", position, "pass 1 is at position 4, expected 3");
    refused("no_tokens", no_tokens, "pass 1 reads no tokens");
    refused("pairing", pairing, "rope_pairing is 'halves', expected half or interleaved");
    refused("utf8", utf8, "is not UTF-8 at byte 3");
    refused("hash", hash, "expected 64 digits");
    refused("late_prompt", late_prompt, "after the first pass");
    refused("of_several", of_several, "call xcheck_generated");
    refused("again", again, "the continuation comes twice");
    refused("heat", heat, "expected a positive number");
    refused("no_array", no_array, "is a part of no array");
    refused("array_name", array_name, "an array is named '../qkv'");
    refused("array_twice", array_twice, "array qkv, layer 0, pass 0 comes twice");
    refused("cut", cut, "cut from 2 to 4 along axis 1, which is no part of its length 3");
    refused("computed", computed, "expected f32, f16 or bf16");
    refused("step_off", step_off, "is no multiple of the option step");
    refused("step_coarse", step_coarse, "expected a positive number of at most 0.05");
    refused("step_negative", step_negative, "expected a positive number of at most 0.05");
    refused("step_elsewhere", step_elsewhere, "of token_logprobs and top_logprobs alone");
    refused("axis", axis, "no axis is named 'hiden'");
    refused("axis_twice", axis_twice, "axis 'token' is named twice");
    refused("all_axes", all_axes, "2 axes were given, expected 10");
    refused("lacking", lacking, "lack 'hidden'");
    refused("rows", rows, "has 0 behind 1; give them in ascending order");
    refused("row", row, "there is no row 3 in a pass of 3");
}

/* ---- the beginning and the end ------------------------------------------------------------------------------------ */

static void no_dump(void) {
    expect(xcheck_pass(NULL, ids, 1, 0) && xcheck_close(NULL) && *xcheck_error(NULL), "no_dump", "NULL is taken");
    expect(xcheck_version(NULL, "") && xcheck_model(NULL, "", NULL) && xcheck_setting(NULL, "", ""), "no_dump", "NULL is taken");
    expect(xcheck_tap(NULL, "q", 0, XCHECK_F32, xcheck_0d(), ones), "no_dump", "NULL is taken");
    xcheck_free(NULL);
}

static void before_a_pass(void) {
    char path[512];
    xcheck_dump *dump;
    path_of(path, sizeof path, "before");
    dump = xcheck_create(path, "test.c", "llama");
    xcheck_tap(dump, "embed", XCHECK_NO_LAYER, XCHECK_F32, xcheck_2d(3, 4), ones);
    expect(!!strstr(xcheck_error(dump), "comes before the first pass"), "before_a_pass", xcheck_error(dump));
    xcheck_free(dump);
    dump = xcheck_create(path, "test.c", "llama");
    xcheck_prompt(dump, "text", ids, 3);
    xcheck_pass(dump, ids + 1, 1, 0);
    expect(!!strstr(xcheck_error(dump), "reads token 2 at position 0, the prompt has 1 there"), "other_prompt", xcheck_error(dump));
    xcheck_free(dump);
    dump = xcheck_create(path, "test.c", "llama");
    expect(xcheck_close(dump) && strstr(xcheck_error(dump), "holds no value"), "nothing", xcheck_error(dump));
    xcheck_free(dump);
}

static void no_place_for_it(void) {
    char path[512];
    xcheck_dump *dump = xcheck_create(folder, "test.c", "llama");
    expect(!!strstr(xcheck_error(dump), "already exists; name another or remove it"), "exists", xcheck_error(dump));
    xcheck_free(dump);
    expect(is_there(folder), "exists", "it was removed");
    path_of(path, sizeof path, "none/run.safetensors");
    dump = xcheck_create(path, "test.c", "llama");
    expect(!!strstr(xcheck_error(dump), "cannot create "), "no_folder", xcheck_error(dump));
    xcheck_free(dump);
    dump = xcheck_create(path, NULL, "llama");
    expect(!!strstr(xcheck_error(dump), "the producer is NULL"), "no_producer", xcheck_error(dump));
    xcheck_free(dump);
    dump = xcheck_create(path, "test.c", "");
    expect(!!strstr(xcheck_error(dump), "the architecture is empty"), "no_architecture", xcheck_error(dump));
    xcheck_free(dump);
}

/* A closed dump takes nothing more, and stays. */
static void closed(const char *name) {
    char path[512], part[520];
    xcheck_dump *dump;
    path_of(path, sizeof path, name);
    snprintf(part, sizeof part, "%s.part", path);
    dump = xcheck_create(path, "quote \" backslash \\ line\n caf\xc3\xa9", "llama");
    xcheck_setting(dump, "a\tb", "\x01");
    xcheck_pass(dump, ids, 3, 0);
    xcheck_tap(dump, "block_out", 0, XCHECK_F64, xcheck_3d(1, 3, 1), ones);
    xcheck_tap(dump, "block_out", 1, XCHECK_BF16, xcheck_2d(3, 1), ones);
    xcheck_tap(dump, "last_logits", XCHECK_NO_LAYER, XCHECK_F16, xcheck_1d(3), ones);
    xcheck_tap(dump, "argmax", XCHECK_NO_LAYER, XCHECK_I32, xcheck_0d(), ids);
    xcheck_temperature(dump, 0.5);
    expect(!is_there(path), name, "it has its name before it is closed");
    expect(!xcheck_close(dump), name, xcheck_error(dump));
    xcheck_tap(dump, "block_out", 2, XCHECK_F32, xcheck_2d(3, 1), ones);
    expect(!!strstr(xcheck_error(dump), "the dump is closed and takes nothing more"), name, xcheck_error(dump));
    xcheck_free(dump);
    expect(is_there(path) && !is_there(part), name, "the dump is not there alone");
}

/* ---- version 2 ------------------------------------------------------------------------------------------------------ */

/* Sequence 0 has two tokens behind padding, sequence 1 three; one more of each follows. */
static void version_2(void) {
    static const uint32_t first[] = {0, 1, 2, 3, 4, 5}, then[] = {7, 8};
    static const int whose[] = {XCHECK_PADDING, 0, 0, 1, 1, 1}, each[] = {0, 1};
    static const int keys[] = {XCHECK_PADDING, 0, 0, 0, 1, 1, 1, 1};
    static const size_t at[] = {0, 0, 1, 0, 1, 2}, next[] = {2, 3}, key_at[] = {0, 0, 1, 2, 0, 1, 2, 3}, some[] = {1, 4};
    static const size_t start[] = {0, 0, 0}, middle[] = {6, 2, 2}, end[] = {6, 4, 2};
    xcheck_options options = {"head,token,key", NULL, NULL, 0, 0};
    float numbers[96];
    char path[512];
    xcheck_dump *dump;
    size_t i;
    for (i = 0; i < 96; i++) numbers[i] = (float)i / 8;
    path_of(path, sizeof path, "version2.safetensors");
    dump = xcheck_create(path, "test", "llama");
    xcheck_version(dump, "1");
    xcheck_model(dump, "none", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    xcheck_rope_pairing(dump, "half");
    xcheck_sequence(dump, "a", "text", first + 1, 2);
    xcheck_sequence(dump, NULL, NULL, first + 3, 3);
    xcheck_forced(dump);
    xcheck_pass_of(dump, first, whose, at, 6);
    xcheck_tap(dump, "embed", XCHECK_NO_LAYER, XCHECK_F32, xcheck_3d(2, 3, 4), numbers);
    xcheck_array(dump, "qk", 0, XCHECK_F32, xcheck_2d(6, 8), numbers);
    xcheck_part(dump, "q", xcheck_3d(6, 4, 2), start, middle, NULL);
    xcheck_part(dump, "k", xcheck_3d(6, 4, 2), start, end, NULL);
    options.axes = "token,hidden", options.rows = some, options.n_rows = 2;
    xcheck_tap_with(dump, "attn_norm", 0, XCHECK_F32, xcheck_2d(2, 4), numbers, &options);
    options.rows = NULL, options.n_rows = 0, options.computed = "bf16";
    xcheck_tap_with(dump, "block_out", 0, XCHECK_F32, xcheck_2d(6, 4), numbers, &options);
    xcheck_tap(dump, "argmax", XCHECK_NO_LAYER, XCHECK_U32, xcheck_1d(2), then);
    xcheck_pass_of(dump, then, each, next, 2);
    xcheck_keys(dump, 2, 4, keys, key_at);
    xcheck_temperature(dump, 0.5);
    xcheck_tap(dump, "k_cache", 0, XCHECK_F32, xcheck_4d(2, 4, 2, 2), numbers);
    xcheck_tap(dump, "probs", XCHECK_NO_LAYER, XCHECK_F64, xcheck_2d(2, 1), numbers);
    xcheck_generated_of(dump, 0, then, 2);
    expect(!xcheck_close(dump), "version_2", xcheck_error(dump));
    xcheck_free(dump);
}

/* Axes that several stand for: `q` by key-value heads, and `attn_context` with its tokens behind its heads. */
static void split(void) {
    static const xcheck_options by_head = {"token,kv_head,group,head_dim", NULL, NULL, 0, 0};
    static const xcheck_options turned = {"kv_head,group,token,head_dim", NULL, NULL, 0, 0};
    float numbers[24];
    char path[512];
    xcheck_dump *dump;
    size_t i;
    for (i = 0; i < 24; i++) numbers[i] = (float)i / 8;
    path_of(path, sizeof path, "split");
    dump = xcheck_create(path, "test", "llama");
    xcheck_pass(dump, ids, 3, 0);
    xcheck_tap_with(dump, "q", 0, XCHECK_F32, xcheck_4d(3, 2, 2, 2), numbers, &by_head);
    xcheck_tap_with(dump, "attn_context", 0, XCHECK_F32, xcheck_4d(2, 2, 3, 2), numbers, &turned);
    expect(!xcheck_close(dump), "split", xcheck_error(dump));
    xcheck_free(dump);
}

/* What a batch cannot be. */
static void several_refused(const char *expected, const int *whose, const size_t *at, xcheck_shape shape) {
    char path[512];
    xcheck_dump *dump;
    path_of(path, sizeof path, "several");
    dump = xcheck_create(path, "test", "llama");
    xcheck_sequence(dump, NULL, NULL, ids, 2);
    xcheck_sequence(dump, NULL, NULL, ids, 2);
    xcheck_pass_of(dump, ids, whose, at, 2);
    xcheck_tap(dump, shape.rank == 3 ? "embed" : "last_logits", XCHECK_NO_LAYER, XCHECK_F32, shape, ones);
    expect(!!strstr(xcheck_error(dump), expected), expected, xcheck_error(dump));
    xcheck_free(dump);
    expect(!is_there(path), expected, "something is left");
}

static void several(void) {
    static const int one[] = {0, 0}, none[] = {-1, -1}, third[] = {0, 2};
    static const size_t together[] = {0, 1}, hole[] = {0, 2};
    several_refused("sequence 0 is at position 2, expected 1", one, hole, xcheck_2d(1, 2));
    several_refused("there is no sequence 2; there are 2", third, together, xcheck_2d(1, 2));
    several_refused("reads padding alone", none, together, xcheck_2d(1, 2));
    several_refused("it has a row for 2 sequences, expected 1", one, together, xcheck_2d(2, 2));
    several_refused("axis 'token' has length 2 in each entry of the batch, expected 1", one, together, xcheck_3d(2, 2, 1));
}

/* ---- log-probabilities ------------------------------------------------------------------------------------------ */

/* A run of two passes, the second of one token; `act` writes in the first. */
static void likely(const char *name, Act act, const char *expected) {
    char path[512];
    xcheck_dump *dump;
    path_of(path, sizeof path, name);
    dump = xcheck_create(path, "test", "llama");
    xcheck_pass(dump, ids, 3, 0);
    act(dump);
    xcheck_pass(dump, ids + 3, 1, 3);
    xcheck_tap(dump, "embed", XCHECK_NO_LAYER, XCHECK_F32, xcheck_2d(1, 4), ones);
    if (strstr(name, "last")) xcheck_tap(dump, "token_logprobs", XCHECK_NO_LAYER, XCHECK_F32, xcheck_1d(1), ones);
    if (strstr(name, "chosen")) xcheck_generated(dump, ids + 3, 2);
    if (!xcheck_close(dump)) expect(!*expected, name, "it is written");
    else expect(*expected && strstr(xcheck_error(dump), expected), name, xcheck_error(dump));
    xcheck_free(dump);
}

static void logprobs_of_all(xcheck_dump *d) { xcheck_tap(d, "token_logprobs", XCHECK_NO_LAYER, XCHECK_F32, xcheck_1d(3), ones); }
static void logprobs_of_two(xcheck_dump *d) { xcheck_tap(d, "token_logprobs", XCHECK_NO_LAYER, XCHECK_F32, xcheck_1d(2), ones); }
static void logprobs_of_one(xcheck_dump *d) { xcheck_tap(d, "token_logprobs", XCHECK_NO_LAYER, XCHECK_F32, xcheck_1d(1), ones); }
static void top_ids(xcheck_dump *d) { xcheck_tap(d, "top_ids", XCHECK_NO_LAYER, XCHECK_U32, xcheck_2d(3, 2), ids); }
static void tops(xcheck_dump *d) {
    top_ids(d);
    xcheck_tap(d, "top_logprobs", XCHECK_NO_LAYER, XCHECK_F32, xcheck_2d(3, 2), ones);
}
static void other_tops(xcheck_dump *d) {
    top_ids(d);
    xcheck_tap(d, "top_logprobs", XCHECK_NO_LAYER, XCHECK_F32, xcheck_2d(3, 1), ones);
}

static void likelihoods(void) {
    likely("all", logprobs_of_all, "");
    likely("two", logprobs_of_two, "");
    likely("one", logprobs_of_one, "axis 'token' has length 1, expected 3");
    likely("last", logprobs_of_all, "is of the token at position 4 of sequence 0, and none is known there");
    likely("last-chosen", logprobs_of_all, "");
    likely("tops", tops, "");
    likely("top-ids", top_ids, "pass 0: top_ids and top_logprobs come together");
    likely("other-tops", other_tops, "pass 0: top_ids and top_logprobs come together");
}

/* A sequence that nothing reads, and two of one name. */
static void unread(const char *name, const char *second, const char *expected) {
    static const int whose[] = {0, 0, 1, 1};
    static const size_t at[] = {0, 1, 0, 1};
    char path[512];
    xcheck_dump *dump;
    path_of(path, sizeof path, name);
    dump = xcheck_create(path, "test", "llama");
    xcheck_sequence(dump, second, NULL, ids, 2);
    xcheck_sequence(dump, NULL, NULL, ids, 2);
    xcheck_pass_of(dump, ids, whose, at, 2);
    if (second) xcheck_pass_of(dump, ids, whose + 2, at + 2, 2);
    xcheck_tap(dump, "embed", XCHECK_NO_LAYER, XCHECK_F32, xcheck_2d(2, 4), ones);
    expect(xcheck_close(dump) && strstr(xcheck_error(dump), expected), name, xcheck_error(dump));
    xcheck_free(dump);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    folder = argv[1];
    refusals();
    no_dump();
    before_a_pass();
    no_place_for_it();
    closed("closed.safetensors");
    closed("closed");
    version_2();
    split();
    several();
    likelihoods();
    unread("unread", NULL, "sequence 1 is read by no pass");
    unread("named", "1", "sequences 0 and 1 have one name");
    return failures != 0;
}
