/* LayerNorm over sums of embeddings (E), and their projection to hidden states (H), in floats. */
#pragma once
#include "products.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct {
    Product projection;
    float *norm[2]; /* scale and shift, (E,) */
    float eps;
} Embedding;

EXPORT void albertkit_free_embedding(Embedding *embedding) {
    free_product(&embedding->projection);
    free(embedding->norm[0]), free(embedding->norm[1]), free(embedding);
}

/* The projection `floats` (H, E) with a bias (H,), and the norm: scale, then shift. NULL without memory. */
EXPORT Embedding *albertkit_new_embedding(int outputs, int inputs, const float *floats, const float *bias, const float *norm, float eps) {
    Embedding *embedding = calloc(1, sizeof *embedding);
    if (!embedding) return NULL;
    embedding->eps = eps;
    embedding->projection = (Product){.outputs = outputs, .inputs = inputs, .bias = copy_floats(bias, outputs, round_up(outputs, PANEL))};
    for (int i = 0; i < 2; i++) embedding->norm[i] = copy_floats(norm + (size_t)i * inputs, inputs, round_up(inputs, LANES));
    if (embedding->projection.bias && embedding->norm[0] && embedding->norm[1] && !pack_product(&embedding->projection, NULL, floats)) return embedding;
    albertkit_free_embedding(embedding);
    return NULL;
}

/* Sums of embeddings (rows, E) to hidden states (rows, H). -1 without memory. */
EXPORT int albertkit_embed(const Embedding *embedding, const float *sums, int rows, float *hidden) {
    const Product *projection = &embedding->projection;
    size_t inputs = projection->inputs, outputs = projection->outputs;
    int room = rows < BLOCK_ROWS ? rows : BLOCK_ROWS;
    FloatRows from = {.width = round_up(projection->inputs, LANES)}, to = {.width = round_up(projection->outputs, PANEL)};
    from.numbers = aligned(sizeof(float) * room * from.width);
    to.numbers = aligned(sizeof(float) * room * to.width);
    int is_complete = from.numbers && to.numbers;
    for (int first = 0; is_complete && first < rows; first += room) {
        int count = rows - first < room ? rows - first : room;
        for (int r = 0; r < count; r++) {
            float *row = from.numbers + (size_t)r * from.width;
            memcpy(row, sums + (first + r) * inputs, sizeof(float) * inputs);
            norm_row(row, embedding->norm, projection->inputs, embedding->eps);
        }
        multiply(projection, NULL, from, count, 0, panel_count(projection), (Epilogue){.out = to});
        for (int r = 0; r < count; r++) memcpy(hidden + (first + r) * outputs, to.numbers + (size_t)r * to.width, sizeof(float) * outputs);
    }
    free(from.numbers), free(to.numbers);
    return is_complete ? 0 : -1;
}
