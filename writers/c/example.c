/* A tiny engine, and what it takes to have it judged: the lines with xcheck_ are all.
 *
 *     cc -O2 -ffp-contract=off example.c -o example -lm
 *     ./example ../../checkpoints/tiny-llama2c/tiny-llama2c-v0.bin run.safetensors 1 403 407
 *     xcheck check --model tiny-llama2c-v0 --candidate run.safetensors
 *
 * It runs llama2.c's files of version 0 in f32: the prompt in one pass, then four tokens greedily. With -DMISTAKE its grouped
 * queries look at the wrong keys, and xcheck names the tap where that begins.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XCHECK_DUMP_IMPLEMENTATION
#include "xcheck_dump.h"

enum { DECODED = 4 };

typedef struct {
    int32_t dim, ffn, layers, heads, kv_heads, vocab, context;
    size_t head, kv_dim, positions; /* positions: how many the cache has */
    float *weights, *keys, *values;
    const float *embedding, *attn_norm, *q, *k, *v, *out, *ffn_norm, *gate, *down, *up, *final_norm;
} Model;

static void fail(const char *message) {
    fprintf(stderr, "error: %s\n", message);
    exit(1);
}

static float *room(size_t count) {
    float *memory = (float *)calloc(count, sizeof *memory);
    if (!memory) fail("out of memory");
    return memory;
}

/* Everything behind the header, as it lies: each kind of matrix of all layers, then the next kind. */
static void place_weights(Model *m) {
    size_t layers = (size_t)m->layers, dim = (size_t)m->dim, ffn = (size_t)m->ffn;
    m->embedding = m->weights;
    m->attn_norm = m->embedding + (size_t)m->vocab * dim;
    m->q = m->attn_norm + layers * dim;
    m->k = m->q + layers * dim * dim;
    m->v = m->k + layers * m->kv_dim * dim;
    m->out = m->v + layers * m->kv_dim * dim;
    m->ffn_norm = m->out + layers * dim * dim;
    m->gate = m->ffn_norm + layers * dim;
    m->down = m->gate + layers * ffn * dim;
    m->up = m->down + layers * ffn * dim;
    m->final_norm = m->up + layers * ffn * dim;
}

static Model load(const char *path) {
    Model m;
    long bytes;
    FILE *file = fopen(path, "rb");
    if (!file || fread(&m, 4, 7, file) != 7 || fseek(file, 0, SEEK_END)) fail("the model cannot be read");
    bytes = ftell(file) - 28;
    if (m.dim <= 0 || m.heads <= 0 || m.kv_heads <= 0 || m.vocab <= 0 || bytes <= 0) fail("it is no model of version 0");
    m.weights = room((size_t)bytes / 4);
    if (fseek(file, 28, SEEK_SET) || fread(m.weights, 4, (size_t)bytes / 4, file) != (size_t)bytes / 4) fail("it is cut off");
    fclose(file);
    m.head = (size_t)(m.dim / m.heads);
    m.kv_dim = m.head * (size_t)m.kv_heads;
    m.positions = 0;
    m.keys = room((size_t)m.layers * (size_t)m.context * m.kv_dim);
    m.values = room((size_t)m.layers * (size_t)m.context * m.kv_dim);
    place_weights(&m);
    if (m.final_norm + m.dim > m.weights + bytes / 4) fail("it is cut off");
    return m;
}

/* ---- the operations: x has `rows` rows ---------------------------------------------------------------------- */

static void rms_norm(const float *x, const float *gain, size_t rows, size_t size, float *out) {
    for (size_t t = 0; t < rows; t++) {
        float sum = 0;
        for (size_t i = 0; i < size; i++) sum += x[t * size + i] * x[t * size + i];
        sum = 1.0f / sqrtf(sum / (float)size + 1e-5f);
        for (size_t i = 0; i < size; i++) out[t * size + i] = gain[i] * (sum * x[t * size + i]);
    }
}

static void product(const float *x, const float *w, size_t rows, size_t in, size_t out_size, float *out) {
    for (size_t t = 0; t < rows; t++)
        for (size_t o = 0; o < out_size; o++) {
            float sum = 0;
            for (size_t i = 0; i < in; i++) sum += w[o * in + i] * x[t * in + i];
            out[t * out_size + o] = sum;
        }
}

/* Rotates neighbours. */
static void rotate(float *x, size_t rows, size_t size, size_t head, size_t first) {
    for (size_t t = 0; t < rows; t++)
        for (size_t i = 0; i < size; i += 2) {
            float angle = (float)(first + t) / powf(10000.0f, (float)(i % head) / (float)head);
            float c = cosf(angle), s = sinf(angle), *pair = x + t * size + i, a = pair[0], b = pair[1];
            pair[0] = a * c - b * s;
            pair[1] = a * s + b * c;
        }
}

static void softmax(float *x, size_t size) {
    float largest = x[0], sum = 0;
    for (size_t i = 1; i < size; i++)
        if (x[i] > largest) largest = x[i];
    for (size_t i = 0; i < size; i++) sum += x[i] = expf(x[i] - largest);
    for (size_t i = 0; i < size; i++) x[i] /= sum;
}

/* The keys that the queries of a head look at: several heads share one. */
static size_t kv_head_of(const Model *m, size_t h) {
#ifdef MISTAKE
    return h % (size_t)m->kv_heads;
#else
    return h / (size_t)(m->heads / m->kv_heads);
#endif
}

/* ---- the model ------------------------------------------------------------------------------------------------ */

static void attention(Model *m, xcheck_dump *dump, int l, size_t rows, float *x) {
    size_t dim = (size_t)m->dim, heads = (size_t)m->heads, seen = m->positions + rows, d = m->head, kv = m->kv_dim, layer = (size_t)l;
    float *norm = room(rows * dim), *q = room(rows * dim), *context = room(rows * dim), *scores = room(heads * rows * seen);
    float *keys = m->keys + layer * (size_t)m->context * kv, *values = m->values + layer * (size_t)m->context * kv;
    float *k = keys + m->positions * kv, *v = values + m->positions * kv;
    rms_norm(x, m->attn_norm + layer * dim, rows, dim, norm);
    product(norm, m->q + layer * dim * dim, rows, dim, dim, q);
    product(norm, m->k + layer * kv * dim, rows, dim, kv, k);
    product(norm, m->v + layer * kv * dim, rows, dim, kv, v);
    xcheck_tap(dump, "attn_norm", l, XCHECK_F32, xcheck_2d(rows, dim), norm);
    xcheck_tap(dump, "q", l, XCHECK_F32, xcheck_3d(rows, heads, d), q);
    xcheck_tap(dump, "k", l, XCHECK_F32, xcheck_3d(rows, kv / d, d), k);
    xcheck_tap(dump, "v", l, XCHECK_F32, xcheck_3d(rows, kv / d, d), v);
    rotate(q, rows, dim, d, m->positions);
    rotate(k, rows, kv, d, m->positions);
    xcheck_tap(dump, "q_rope", l, XCHECK_F32, xcheck_3d(rows, heads, d), q);
    xcheck_tap(dump, "k_rope", l, XCHECK_F32, xcheck_3d(rows, kv / d, d), k);
    for (size_t h = 0; h < heads; h++)
        for (size_t t = 0; t < rows; t++) {
            float *row = scores + (h * rows + t) * seen;
            size_t visible = m->positions + t + 1, at = kv_head_of(m, h) * d;
            for (size_t s = 0; s < visible; s++) {
                for (size_t i = 0; i < d; i++) row[s] += q[t * dim + h * d + i] * keys[s * kv + at + i];
                row[s] /= sqrtf((float)d);
            }
            softmax(row, visible);
            for (size_t s = 0; s < visible; s++)
                for (size_t i = 0; i < d; i++) context[t * dim + h * d + i] += row[s] * values[s * kv + at + i];
        }
    xcheck_tap(dump, "attn_weights", l, XCHECK_F32, xcheck_3d(heads, rows, seen), scores);
    xcheck_tap(dump, "attn_context", l, XCHECK_F32, xcheck_2d(rows, dim), context);
    product(context, m->out + layer * dim * dim, rows, dim, dim, norm);
    for (size_t i = 0; i < rows * dim; i++) x[i] += norm[i];
    free(norm), free(q), free(context), free(scores);
}

static void feed_forward(Model *m, int l, size_t rows, float *x) {
    size_t dim = (size_t)m->dim, ffn = (size_t)m->ffn, layer = (size_t)l;
    float *norm = room(rows * dim), *gate = room(rows * ffn), *up = room(rows * ffn);
    rms_norm(x, m->ffn_norm + layer * dim, rows, dim, norm);
    product(norm, m->gate + layer * ffn * dim, rows, dim, ffn, gate);
    product(norm, m->up + layer * ffn * dim, rows, dim, ffn, up);
    for (size_t i = 0; i < rows * ffn; i++) gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
    product(gate, m->down + layer * ffn * dim, rows, ffn, dim, norm);
    for (size_t i = 0; i < rows * dim; i++) x[i] += norm[i];
    free(norm), free(gate), free(up);
}

/* A pass over `rows` tokens; the greedy choice after them. */
static uint32_t forward(Model *m, xcheck_dump *dump, const uint32_t *tokens, size_t rows) {
    size_t dim = (size_t)m->dim, vocab = (size_t)m->vocab;
    float *x = room(rows * dim), *logits = room(vocab), *last = x + (rows - 1) * dim;
    uint32_t best = 0;
    for (size_t t = 0; t < rows; t++) memcpy(x + t * dim, m->embedding + tokens[t] * dim, dim * sizeof *x);
    xcheck_pass(dump, tokens, rows, m->positions);
    for (int l = 0; l < m->layers; l++) {
        attention(m, dump, l, rows, x);
        feed_forward(m, l, rows, x);
        xcheck_tap(dump, "block_out", l, XCHECK_F32, xcheck_2d(rows, dim), x);
    }
    rms_norm(last, m->final_norm, 1, dim, last);
    product(last, m->embedding, 1, dim, vocab, logits);
    xcheck_tap(dump, "last_logits", XCHECK_NO_LAYER, XCHECK_F32, xcheck_1d(vocab), logits);
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    m->positions += rows;
    free(x), free(logits);
    return best;
}

int main(int argc, char **argv) {
    uint32_t tokens[64], generated[DECODED + 1];
    size_t count = argc > 3 ? (size_t)argc - 3 : 0;
    if (!count || count > 64) fail("usage: example MODEL OUT TOKEN...");
    Model model = load(argv[1]);
    if (count + DECODED > (size_t)model.context) fail("more tokens than the model's context");
    for (size_t i = 0; i < count; i++) {
        tokens[i] = (uint32_t)strtoul(argv[3 + i], NULL, 10);
        if (tokens[i] >= (uint32_t)model.vocab) fail("a token is outside the vocabulary");
    }
    xcheck_dump *dump = xcheck_create(argv[2], "example.c", "llama");
    xcheck_setting(dump, "dtype", "f32");
    xcheck_rope_pairing(dump, "interleaved");
    generated[0] = forward(&model, dump, tokens, count);
    for (int i = 0; i < DECODED; i++) generated[i + 1] = forward(&model, dump, &generated[i], 1);
    xcheck_generated(dump, generated, DECODED + 1);
    int failed = xcheck_close(dump);
    if (failed) fprintf(stderr, "error: %s\n", xcheck_error(dump));
    xcheck_free(dump);
    free(model.weights), free(model.keys), free(model.values);
    return failed;
}
