/* Attention of one head of one text: softmax(Q K^T / sqrt(d) + bias) V. */
#pragma once
#include "products.h"

typedef struct {
    float *queries, *keys, *values; /* (tokens, width), of this head; the context replaces the queries */
    int width, tokens, size;
    const float *theta; /* (2 reach + 1,) of this head, by distance; or NULL */
    int reach;
} Head;

typedef struct {
    float *keys;   /* (size rounded up to 16, tokens rounded up to 32): transposed */
    float *values; /* (tokens, size rounded up to 32) */
    float *scores; /* (16, tokens rounded up to 32): of the queries of a tile */
    float *queries, *weights; /* in bfloat16: (tokens, size), and the scores after softmax */
    float *bias;   /* (2 tokens,): of each distance in a text, or not used */
    int tokens;    /* room */
} HeadScratch;

static void free_head(HeadScratch *scratch) {
    free(scratch->keys), free(scratch->values), free(scratch->scores), free(scratch->bias), free(scratch->queries), free(scratch->weights);
    *scratch = (HeadScratch){0};
}

/* Room for a text. Returns 0, or -1 without memory. */
static int reserve_head(HeadScratch *scratch, int tokens, int size) {
    if (tokens <= scratch->tokens) return 0;
    size_t wide = round_up(tokens, PANEL), deep = round_up(size, PANEL);
    free_head(scratch);
    scratch->keys = aligned(sizeof(float) * wide * deep);
    scratch->values = aligned(sizeof(float) * wide * deep);
    scratch->scores = aligned(sizeof(float) * (wide > deep ? wide : deep) * LANES);
    scratch->queries = aligned(sizeof(float) * wide * deep / 2);
    scratch->weights = aligned(sizeof(float) * wide * LANES / 2);
    scratch->bias = aligned(sizeof(float) * (2 * tokens + LANES));
    if (!scratch->keys || !scratch->values || !scratch->scores || !scratch->bias || !scratch->queries || !scratch->weights) return -1;
    scratch->tokens = tokens;
    return 0;
}

/* 16 x 16 numbers, transposed. The first `count` rows are read, the others are zeros. */
INLINE void transpose(const float *from, int from_step, int count, float *to, int to_step) {
    floats rows[LANES], pairs[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) rows[i] = i < count ? _mm512_loadu_ps(from + (size_t)i * from_step) : _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 4) {
        __m512d a = _mm512_castps_pd(pairs[i]), b = _mm512_castps_pd(pairs[i + 1]);
        __m512d c = _mm512_castps_pd(pairs[i + 2]), d = _mm512_castps_pd(pairs[i + 3]);
        rows[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c)), rows[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        rows[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d)), rows[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        floats a = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0x88), b = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0xdd);
        floats c = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0x88), d = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0xdd);
        _mm512_storeu_ps(to + (size_t)i * to_step, _mm512_shuffle_f32x4(a, c, 0x88));
        _mm512_storeu_ps(to + (size_t)(i + 4) * to_step, _mm512_shuffle_f32x4(b, d, 0x88));
        _mm512_storeu_ps(to + (size_t)(i + 8) * to_step, _mm512_shuffle_f32x4(a, c, 0xdd));
        _mm512_storeu_ps(to + (size_t)(i + 12) * to_step, _mm512_shuffle_f32x4(b, d, 0xdd));
    }
}

/* The bias of each distance in this text, by: place of a key - place of a query + tokens - 1. */
static void copy_bias(const Head *head, HeadScratch *scratch) {
    for (int i = 0; i < 2 * head->tokens - 1; i++) {
        int distance = i - (head->tokens - 1);
        distance = distance < -head->reach ? -head->reach : distance > head->reach ? head->reach : distance;
        scratch->bias[i] = LOG2_E * head->theta[distance + head->reach];
    }
}

/* Keys, values and bias in the order in which the tiles read them. */
static void copy_head(const Head *head, HeadScratch *scratch) {
    int wide = round_up(head->tokens, PANEL), deep = round_up(head->size, PANEL);
    for (int token = 0; token < wide; token += LANES)
        for (int i = 0; i < head->size; i += LANES)
            transpose(head->keys + (size_t)token * head->width + i, head->width, head->tokens - token, scratch->keys + (size_t)i * wide + token, wide);
    for (int token = 0; token < head->tokens; token++)
        for (int i = 0; i < deep; i += LANES)
            _mm512_storeu_ps(scratch->values + (size_t)token * deep + i,
                             _mm512_maskz_loadu_ps(lanes_below(head->size, i), head->values + (size_t)token * head->width + i));
    if (head->theta) copy_bias(head, scratch);
}

/* The score of a query for 16 keys times `scale`, with the bias of their distances. */
INLINE floats biased_score(const float *scores, int first, int tokens, float scale, const float *bias) {
    floats x = _mm512_loadu_ps(scores + first), factor = _mm512_set1_ps(scale);
    return bias ? _mm512_fmadd_ps(x, factor, _mm512_maskz_loadu_ps(lanes_below(tokens, first), bias + first)) : _mm512_mul_ps(x, factor);
}

/* The largest score of a query. */
INLINE floats largest_score(const float *scores, int tokens, float scale, const float *bias) {
    floats maximum = _mm512_set1_ps(-INFINITY);
    for (int i = 0; i < tokens; i += LANES)
        maximum = _mm512_mask_max_ps(maximum, lanes_below(tokens, i), maximum, biased_score(scores, i, tokens, scale, bias));
    return _mm512_set1_ps(_mm512_reduce_max_ps(maximum));
}

/* The weights of 16 keys, not yet divided by their sum; zeros behind the last. */
INLINE floats key_weights(const float *scores, int first, int tokens, float scale, const float *bias, floats maximum) {
    floats x = _mm512_sub_ps(biased_score(scores, first, tokens, scale, bias), maximum);
    return _mm512_maskz_mov_ps(lanes_below(tokens, first), power_of_two(x));
}

/* Scores of a query to weights, not yet divided by their sum, which it returns. */
INLINE float softmax_row(float *scores, int tokens, float scale, const float *bias) {
    floats maximum = largest_score(scores, tokens, scale, bias), sum = _mm512_setzero_ps();
    for (int i = 0; i < round_up(tokens, PANEL); i += LANES) {
        floats x = key_weights(scores, i, tokens, scale, bias, maximum);
        _mm512_storeu_ps(scores + i, x);
        sum = _mm512_add_ps(sum, x);
    }
    return _mm512_reduce_add_ps(sum);
}

/* The context of all queries, in their place. */
static void attend(const Head *head, HeadScratch *scratch) {
    int tokens = head->tokens, wide = round_up(tokens, PANEL), deep = round_up(head->size, PANEL);
    float scale = LOG2_E / sqrtf((float)head->size);
    _Alignas(64) float sums[MOST_ROWS * PANEL];
    copy_head(head, scratch);
    for (int group = 0; group < group_count(tokens); group++) {
        int first = group_start(tokens, group), rows = group_start(tokens, group + 1) - first;
        float shares[MOST_ROWS];
        for (int key = 0; key < wide; key += PANEL)
            multiply_floats(rows, head->queries + (size_t)first * head->width, head->width, scratch->keys + key, wide, head->size, scratch->scores + key, wide);
        for (int r = 0; r < rows; r++)
            shares[r] = 1.0f / softmax_row(scratch->scores + (size_t)r * wide, tokens, scale, head->theta ? scratch->bias + tokens - 1 - (first + r) : NULL);
        for (int i = 0; i < deep; i += PANEL) {
            multiply_floats(rows, scratch->scores, wide, scratch->values + i, deep, tokens, sums, PANEL);
            for (int r = 0; r < rows; r++)
                for (int half = 0; half < PANEL; half += LANES)
                    _mm512_mask_storeu_ps(head->queries + (size_t)(first + r) * head->width + i + half, lanes_below(head->size, i + half),
                                          _mm512_mul_ps(_mm512_load_ps(sums + r * PANEL + half), _mm512_set1_ps(shares[r])));
        }
    }
}
