/* A Llama in C, and the ten lines that have it judged: those with `xcheck` or `dump`.
 *
 *     cc -O2 -I../../writers/c llama.c -o llama -lm
 *     ./llama ../../checkpoints/tiny-llama2c/tiny-llama2c-v0.bin run.safetensors [--mistake]
 *     xcheck check --model tiny-llama2c-v0 --candidate run.safetensors
 *
 * It reads llama2.c's files of version 0, and runs a prompt. With --mistake its norms have the epsilon 1e-6.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XCHECK_DUMP_IMPLEMENTATION
#include "xcheck_dump.h"

enum { TOKENS = 5 };
static const uint32_t tokens[TOKENS] = {1, 403, 407, 393, 395};

/* The file: its sizes, then each kind of matrix of all layers. */
static struct {
    int32_t dim, ffn, layers, heads, kv_heads, vocab, context;
} size;
static float *embedding, *attn_norm, *wq, *wk, *wv, *wo, *ffn_norm, *gate, *down, *up, *norm;
static int d, kv; /* of a head; of all key heads */
static float eps = 1e-5f;

static float *room(int count) {
    float *memory = (float *)calloc((size_t)count, sizeof *memory);
    if (!memory) exit(1);
    return memory;
}

static float *read_floats(FILE *file, int count) {
    float *floats = room(count);
    if (fread(floats, sizeof *floats, (size_t)count, file) != (size_t)count) exit(1);
    return floats;
}

static void load(const char *path) {
    FILE *file = fopen(path, "rb");
    int n;
    if (!file || fread(&size, sizeof size, 1, file) != 1) exit(1);
    n = size.layers * size.dim, d = size.dim / size.heads, kv = d * size.kv_heads;
    embedding = read_floats(file, size.vocab * size.dim);
    attn_norm = read_floats(file, n);
    wq = read_floats(file, n * size.dim);
    wk = read_floats(file, n * kv);
    wv = read_floats(file, n * kv);
    wo = read_floats(file, n * size.dim);
    ffn_norm = read_floats(file, n);
    gate = read_floats(file, n * size.ffn);
    down = read_floats(file, n * size.ffn);
    up = read_floats(file, n * size.ffn);
    norm = read_floats(file, size.dim);
    fclose(file);
}

static float dot(const float *a, const float *b, int count) {
    float sum = 0;
    for (int i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* [TOKENS, from] and [to, from] give [TOKENS, to]. */
static float *product(const float *x, const float *w, int from, int to) {
    float *out = room(TOKENS * to);
    for (int t = 0; t < TOKENS; t++)
        for (int o = 0; o < to; o++) out[t * to + o] = dot(x + t * from, w + o * from, from);
    return out;
}

static float *rms_norm(const float *x, const float *gain) {
    float *out = room(TOKENS * size.dim);
    for (int t = 0; t < TOKENS; t++) {
        const float *row = x + t * size.dim;
        float scale = 1 / sqrtf(dot(row, row, size.dim) / (float)size.dim + eps);
        for (int i = 0; i < size.dim; i++) out[t * size.dim + i] = row[i] * scale * gain[i];
    }
    return out;
}

/* RoPE turns neighbours. */
static float *rotated(float *x, int width) {
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < width; i += 2) {
            float angle = (float)t * powf(10000, -(float)(i % d) / (float)d), c = cosf(angle), s = sinf(angle);
            float *pair = x + t * width + i, a = pair[0], b = pair[1];
            pair[0] = a * c - b * s, pair[1] = a * s + b * c;
        }
    return x;
}

static void add(float *x, const float *y) {
    for (int i = 0; i < TOKENS * size.dim; i++) x[i] += y[i];
}

static float *attention(const float *h, int l) {
    const float *q = rotated(product(h, wq + l * size.dim * size.dim, size.dim, size.dim), size.dim);
    const float *k = rotated(product(h, wk + l * kv * size.dim, size.dim, kv), kv);
    const float *v = product(h, wv + l * kv * size.dim, size.dim, kv);
    float *context = room(TOKENS * size.dim);
    for (int t = 0; t < TOKENS; t++)
        for (int head = 0; head < size.heads; head++) {
            int shared = head / (size.heads / size.kv_heads) * d;
            float weights[TOKENS], sum = 0, *out = context + t * size.dim + head * d;
            for (int s = 0; s <= t; s++) weights[s] = dot(q + t * size.dim + head * d, k + s * kv + shared, d) / sqrtf((float)d);
            for (int s = 0; s <= t; s++) sum += weights[s] = expf(weights[s]);
            for (int s = 0; s <= t; s++)
                for (int i = 0; i < d; i++) out[i] += weights[s] / sum * v[s * kv + shared + i];
        }
    return product(context, wo + l * size.dim * size.dim, size.dim, size.dim);
}

static float *feed_forward(const float *h, int l) {
    float *g = product(h, gate + l * size.ffn * size.dim, size.dim, size.ffn);
    const float *u = product(h, up + l * size.ffn * size.dim, size.dim, size.ffn);
    for (int i = 0; i < TOKENS * size.ffn; i++) g[i] = g[i] / (1 + expf(-g[i])) * u[i];
    return product(g, down + l * size.dim * size.ffn, size.ffn, size.dim);
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: llama MODEL OUT [--mistake]\n"), 2;
    if (argc > 3) eps = 1e-6f;
    load(argv[1]);
    float *x = room(TOKENS * size.dim);
    for (int t = 0; t < TOKENS; t++) memcpy(x + t * size.dim, embedding + tokens[t] * (uint32_t)size.dim, (size_t)size.dim * 4);

    xcheck_dump *dump = xcheck_create(argv[2], "llama.c of the examples", "llama");
    xcheck_shape shape = xcheck_2d(TOKENS, (size_t)size.dim);
    xcheck_pass(dump, tokens, TOKENS, 0);
    for (int l = 0; l < size.layers; l++) {
        add(x, attention(rms_norm(x, attn_norm + l * size.dim), l));
        xcheck_tap(dump, "attn_residual", l, XCHECK_F32, shape, x);
        add(x, feed_forward(rms_norm(x, ffn_norm + l * size.dim), l));
        xcheck_tap(dump, "block_out", l, XCHECK_F32, shape, x);
    }
    float *logits = product(rms_norm(x, norm), embedding, size.dim, size.vocab);
    xcheck_tap(dump, "logits", XCHECK_NO_LAYER, XCHECK_F32, xcheck_2d(TOKENS, (size_t)size.vocab), logits);
    if (xcheck_close(dump)) return fprintf(stderr, "error: %s\n", xcheck_error(dump)), 1;
    xcheck_free(dump);
    return 0;
}
