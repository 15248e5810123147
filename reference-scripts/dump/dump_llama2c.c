/* Runs a llama2.c model (version 0, 1 or 2) and writes every intermediate value to standard output.
 *
 *     dump_llama2c MODEL DECODE TOKEN...
 *
 * It is a program of its own, not run.c: the file's layout and the order of each sum are those of run.c and runq.c,
 * which compute in f32, from the first value to the last. dump_llama2c.py compiles it, reads what it writes, and can
 * hold its logits and KV cache against a real run of either program, bit for bit.
 *
 * Per token, records of one line "tap layer count" (layer -1 outside of layers) and then `count` f32 in the machine's
 * order. The tokens after the prompt are the greedy ones. Compile without -ffast-math and without contraction to FMA.
 */

#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { MAGIC = 0x616b3432, HEADER_BYTES = 256, SIZES_BYTES = 28 };

/* f32 in `plain`, or int8 in `codes` with a scale for each `group` of them. */
typedef struct {
    const float *plain;
    const int8_t *codes;
    const float *scales;
    int group, rows, cols;
} Matrix;

typedef struct {
    const float *attn_norm, *ffn_norm;
    Matrix q, k, v, out, gate, down, up;
    float *keys, *values; /* the cache: positions x kv width */
} Layer;

typedef struct {
    int32_t dim, ffn, n_layers, n_heads, n_kv, vocab, context;
    int version, group, shared, head, kv_dim;
    Matrix embedding, classifier;
    const float *final_norm;
    Layer *layers;
} Model;

static void fail(const char *message) {
    fprintf(stderr, "error: %s\n", message);
    exit(1);
}

static void *room(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (!memory) fail("out of memory");
    return memory;
}

/* ---- the file ------------------------------------------------------------------------------------------------ */

typedef struct {
    const uint8_t *at, *end;
} Bytes;

static const void *take(Bytes *bytes, size_t count) {
    if ((size_t)(bytes->end - bytes->at) < count) fail("the file is shorter than its header says");
    const void *start = bytes->at;
    bytes->at += count;
    return start;
}

static const float *take_floats(Bytes *bytes, size_t count) { return take(bytes, 4 * count); }

static Matrix take_matrix(Bytes *bytes, const Model *m, int rows, int cols) {
    Matrix w = {.group = m->group, .rows = rows, .cols = cols};
    size_t count = (size_t)rows * cols;
    if (!m->group) {
        w.plain = take_floats(bytes, count);
        return w;
    }
    w.codes = take(bytes, count);
    w.scales = take_floats(bytes, count / m->group);
    return w;
}

#define EACH_LAYER(field, value) for (int l = 0; l < m->n_layers; l++) m->layers[l].field = value

static void take_attention(Bytes *bytes, Model *m) {
    EACH_LAYER(q, take_matrix(bytes, m, m->dim, m->dim));
    EACH_LAYER(k, take_matrix(bytes, m, m->kv_dim, m->dim));
    EACH_LAYER(v, take_matrix(bytes, m, m->kv_dim, m->dim));
    EACH_LAYER(out, take_matrix(bytes, m, m->dim, m->dim));
}

static void take_feed_forward(Bytes *bytes, Model *m) {
    EACH_LAYER(gate, take_matrix(bytes, m, m->ffn, m->dim));
    EACH_LAYER(down, take_matrix(bytes, m, m->dim, m->ffn));
    EACH_LAYER(up, take_matrix(bytes, m, m->ffn, m->dim));
}

static void take_weights(Bytes *bytes, Model *m) {
    if (m->version == 0) {
        m->embedding = take_matrix(bytes, m, m->vocab, m->dim);
        EACH_LAYER(attn_norm, take_floats(bytes, m->dim));
        take_attention(bytes, m);
        EACH_LAYER(ffn_norm, take_floats(bytes, m->dim));
        take_feed_forward(bytes, m);
        m->final_norm = take_floats(bytes, m->dim);
        take_floats(bytes, (size_t)m->context * m->head); /* cosines and sines, which run.c skips */
    } else {
        EACH_LAYER(attn_norm, take_floats(bytes, m->dim));
        EACH_LAYER(ffn_norm, take_floats(bytes, m->dim));
        m->final_norm = take_floats(bytes, m->dim);
        m->embedding = take_matrix(bytes, m, m->vocab, m->dim);
        take_attention(bytes, m);
        take_feed_forward(bytes, m);
    }
    m->classifier = m->shared ? m->embedding : take_matrix(bytes, m, m->vocab, m->dim);
    if (bytes->at != bytes->end) fail("the file is longer than its header says");
}

static void read_header(Bytes *bytes, Model *m) {
    const uint8_t *start = bytes->at;
    uint32_t first;
    memcpy(&first, start, 4);
    if (first == MAGIC) {
        const uint8_t *header = take(bytes, HEADER_BYTES);
        memcpy(&m->version, header + 4, 4);
        memcpy(m, header + 8, SIZES_BYTES);
        m->shared = header[36];
        if (m->version == 2) memcpy(&m->group, header + 37, 4);
        if (m->version != 1 && m->version != 2) fail("the version is not 0, 1 or 2");
    } else {
        memcpy(m, take(bytes, SIZES_BYTES), SIZES_BYTES);
        m->shared = m->vocab > 0;
        m->vocab = abs(m->vocab);
    }
}

static Model load(const char *path) {
    int file = open(path, O_RDONLY);
    struct stat info;
    if (file < 0 || fstat(file, &info) || info.st_size < HEADER_BYTES) fail("cannot open the model");
    const uint8_t *data = mmap(NULL, info.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED) fail("cannot map the model");
    Bytes bytes = {data, data + info.st_size};
    Model model = {0}, *m = &model;
    read_header(&bytes, m);
    if (m->dim < 1 || m->n_heads < 1 || m->n_layers < 1 || m->n_kv < 1 || m->ffn < 1 || m->context < 1)
        fail("the header's sizes are not those of a model");
    m->head = m->dim / m->n_heads;
    m->kv_dim = m->n_kv * m->head;
    if (m->group && (m->dim % m->group || m->ffn % m->group)) fail("groups do not divide the rows");
    m->layers = room(m->n_layers, sizeof(Layer));
    take_weights(&bytes, m);
    EACH_LAYER(keys, room((size_t)m->context * m->kv_dim, 4));
    EACH_LAYER(values, room((size_t)m->context * m->kv_dim, 4));
    return model;
}

/* ---- what is written ----------------------------------------------------------------------------------------- */

static void emit(const char *tap, int layer, const float *values, size_t count) {
    printf("%s %d %zu\n", tap, layer, count);
    if (fwrite(values, 4, count, stdout) != count) fail("cannot write");
}

/* ---- the operations ------------------------------------------------------------------------------------------ */

static void embed(const Matrix *table, int token, float *out) {
    for (int i = 0; i < table->cols; i++) {
        size_t at = (size_t)token * table->cols + i;
        out[i] = table->plain ? table->plain[at] : table->codes[at] * table->scales[at / table->group];
    }
}

static void rms_norm(const float *x, const float *weight, int size, float *out) {
    float sum = 0;
    for (int i = 0; i < size; i++) sum += x[i] * x[i];
    sum /= size;
    float scale = 1.0f / sqrtf(sum + 1e-5f);
    for (int i = 0; i < size; i++) out[i] = weight[i] * (scale * x[i]);
}

/* Codes and scales of a row of activations. */
static void quantise(const float *x, int size, int group, int8_t *codes, float *scales) {
    for (int g = 0; g < size / group; g++) {
        float largest = 0;
        for (int i = g * group; i < (g + 1) * group; i++)
            if (fabsf(x[i]) > largest) largest = fabsf(x[i]);
        scales[g] = largest / 127.0f;
        for (int i = g * group; i < (g + 1) * group; i++) codes[i] = (int8_t)round(x[i] / scales[g]);
    }
}

static float row_in_groups(const Matrix *w, int row, const int8_t *codes, const float *scales) {
    float sum = 0;
    const int8_t *row_codes = w->codes + (size_t)row * w->cols;
    const float *row_scales = w->scales + (size_t)row * w->cols / w->group;
    for (int g = 0; g < w->cols / w->group; g++) {
        int32_t dot = 0;
        for (int i = g * w->group; i < (g + 1) * w->group; i++) dot += row_codes[i] * codes[i];
        sum += (float)dot * row_scales[g] * scales[g];
    }
    return sum;
}

static void product(const Matrix *w, const float *x, float *out) {
    if (w->plain) {
        for (int row = 0; row < w->rows; row++) {
            float sum = 0;
            for (int i = 0; i < w->cols; i++) sum += w->plain[(size_t)row * w->cols + i] * x[i];
            out[row] = sum;
        }
        return;
    }
    int8_t *codes = room(w->cols, 1);
    float *scales = room(w->cols / w->group, 4);
    quantise(x, w->cols, w->group, codes, scales);
    for (int row = 0; row < w->rows; row++) out[row] = row_in_groups(w, row, codes, scales);
    free(codes);
    free(scales);
}

/* Rotates neighbours. */
static void rotate(float *x, int size, int head, int position) {
    for (int i = 0; i < size; i += 2) {
        float angle = position * (1.0f / powf(10000.0f, i % head / (float)head));
        float c = cosf(angle), s = sinf(angle), a = x[i], b = x[i + 1];
        x[i] = a * c - b * s;
        x[i + 1] = a * s + b * c;
    }
}

static void softmax(float *x, int size) {
    float largest = x[0], sum = 0;
    for (int i = 1; i < size; i++)
        if (x[i] > largest) largest = x[i];
    for (int i = 0; i < size; i++) sum += x[i] = expf(x[i] - largest);
    for (int i = 0; i < size; i++) x[i] /= sum;
}

/* What the last query sees of the cache: scores, weights and context, each of all heads. */
static void attend(const Model *m, const Layer *layer, int l, int keys, const float *q, float *context) {
    float *scores = room((size_t)m->n_heads * keys, 4);
    for (int h = 0; h < m->n_heads; h++)
        for (int t = 0; t < keys; t++) {
            const float *k = layer->keys + (size_t)t * m->kv_dim + h / (m->n_heads / m->n_kv) * m->head;
            float sum = 0;
            for (int i = 0; i < m->head; i++) sum += q[h * m->head + i] * k[i];
            scores[h * keys + t] = sum / sqrtf(m->head);
        }
    emit("attn_scores", l, scores, (size_t)m->n_heads * keys);
    for (int h = 0; h < m->n_heads; h++) softmax(scores + h * keys, keys);
    emit("attn_weights", l, scores, (size_t)m->n_heads * keys);
    memset(context, 0, 4 * m->dim);
    for (int h = 0; h < m->n_heads; h++)
        for (int t = 0; t < keys; t++) {
            const float *v = layer->values + (size_t)t * m->kv_dim + h / (m->n_heads / m->n_kv) * m->head;
            for (int i = 0; i < m->head; i++) context[h * m->head + i] += scores[h * keys + t] * v[i];
        }
    emit("attn_context", l, context, m->dim);
    free(scores);
}

/* Adds the attention of a layer to x. */
static void attention(const Model *m, const Layer *layer, int l, int position, float *x) {
    float *norm = room(m->dim, 4), *q = room(m->dim, 4), *context = room(m->dim, 4), *out = room(m->dim, 4);
    float *k = layer->keys + (size_t)position * m->kv_dim, *v = layer->values + (size_t)position * m->kv_dim;
    size_t cached = (size_t)(position + 1) * m->kv_dim;
    rms_norm(x, layer->attn_norm, m->dim, norm);
    emit("attn_norm", l, norm, m->dim);
    product(&layer->q, norm, q);
    product(&layer->k, norm, k);
    product(&layer->v, norm, v);
    emit("q", l, q, m->dim);
    emit("k", l, k, m->kv_dim);
    emit("v", l, v, m->kv_dim);
    rotate(q, m->dim, m->head, position);
    rotate(k, m->kv_dim, m->head, position);
    emit("q_rope", l, q, m->dim);
    emit("k_rope", l, k, m->kv_dim);
    emit("k_cache", l, layer->keys, cached);
    emit("v_cache", l, layer->values, cached);
    attend(m, layer, l, position + 1, q, context);
    product(&layer->out, context, out);
    emit("attn_out", l, out, m->dim);
    for (int i = 0; i < m->dim; i++) x[i] += out[i];
    emit("attn_residual", l, x, m->dim);
    free(norm), free(q), free(context), free(out);
}

/* Adds the feed-forward branch of a layer to x. */
static void feed_forward(const Model *m, const Layer *layer, int l, float *x) {
    float *norm = room(m->dim, 4), *gate = room(m->ffn, 4), *up = room(m->ffn, 4), *out = room(m->dim, 4);
    rms_norm(x, layer->ffn_norm, m->dim, norm);
    emit("ffn_norm", l, norm, m->dim);
    product(&layer->gate, norm, gate);
    product(&layer->up, norm, up);
    emit("ffn_gate", l, gate, m->ffn);
    emit("ffn_up", l, up, m->ffn);
    for (int i = 0; i < m->ffn; i++) {
        float silu = gate[i] * (1.0f / (1.0f + expf(-gate[i])));
        gate[i] = silu * up[i];
    }
    emit("ffn_act", l, gate, m->ffn);
    product(&layer->down, gate, out);
    emit("ffn_out", l, out, m->dim);
    for (int i = 0; i < m->dim; i++) x[i] += out[i];
    emit("block_out", l, x, m->dim);
    free(norm), free(gate), free(up), free(out);
}

/* One token; the greedy choice after it. */
static int forward(const Model *m, int token, int position, float *logits) {
    float *x = room(m->dim, 4);
    embed(&m->embedding, token, x);
    emit("embed", -1, x, m->dim);
    for (int l = 0; l < m->n_layers; l++) {
        attention(m, &m->layers[l], l, position, x);
        feed_forward(m, &m->layers[l], l, x);
    }
    rms_norm(x, m->final_norm, m->dim, x);
    emit("final_norm", -1, x, m->dim);
    product(&m->classifier, x, logits);
    emit("logits", -1, logits, m->vocab);
    free(x);
    int best = 0;
    for (int i = 1; i < m->vocab; i++)
        if (logits[i] > logits[best]) best = i;
    softmax(logits, m->vocab);
    emit("probs", -1, logits, m->vocab);
    float choice = best;
    emit("argmax", -1, &choice, 1);
    return best;
}

int main(int argc, char **argv) {
    if (argc < 4) fail("usage: dump_llama2c MODEL DECODE TOKEN...");
    Model model = load(argv[1]);
    int prompt = argc - 3, total = prompt + atoi(argv[2]), next = 0;
    if (total > model.context) fail("more tokens than the model's context");
    float *logits = room(model.vocab, 4);
    float sizes[] = {model.version, model.group, model.n_layers, model.n_heads, model.n_kv, model.head, model.vocab};
    emit("sizes", -1, sizes, sizeof sizes / sizeof *sizes);
    for (int position = 0; position < total; position++) {
        int token = position < prompt ? atoi(argv[3 + position]) : next;
        if (token < 0 || token >= model.vocab) fail("a token is outside the vocabulary");
        next = forward(&model, token, position, logits);
    }
    return 0;
}
