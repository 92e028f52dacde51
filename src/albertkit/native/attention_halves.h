/* Attention of one head of one text: products of bfloat16, sums and softmax in floats. For models in 8 bits, whose own
   rounding is coarser than that of bfloat16. */
#pragma once
#include "attention.h"
#ifdef __AMX_BF16__
#include "halves_amx.h"
#else
#include "halves_bf16.h"
#endif

/* 16 numbers to bfloat16, in the low or the high half of each lane. */
INLINE __m512i low_halves(floats x) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)); }
INLINE __m512i high_halves(floats x) { return _mm512_slli_epi32(low_halves(x), 16); }

/* 16 numbers of a row; zeros where there is no such row, and behind its end. */
INLINE floats head_numbers(const Head *head, const float *rows, int row, int first) {
    return row < head->tokens ? _mm512_maskz_loadu_ps(lanes_below(head->size, first), rows + (size_t)row * head->width + first) : _mm512_setzero_ps();
}

/* Queries (tokens, size), keys (size / 2, tokens, 2) and values (tokens / 2, size, 2) in bfloat16, with zeros around them. */
static void copy_halves(const Head *head, HeadScratch *scratch) {
    int wide = round_up(head->tokens, PANEL), deep = round_up(head->size, PANEL);
    uint16_t *queries = (uint16_t *)scratch->queries;
    __m512i *values = (__m512i *)scratch->values;
    _Alignas(64) int32_t pairs[LANES][LANES];
    for (int token = 0; token < wide; token++)
        for (int i = 0; i < deep; i += LANES)
            _mm256_store_si256((__m256i *)(queries + (size_t)token * deep + i), (__m256i)_mm512_cvtneps_pbh(head_numbers(head, head->queries, token, i)));
    for (int token = 0; token < wide; token += LANES)
        for (int i = 0; i < deep; i += 2 * LANES) { /* 16 tokens with 16 pairs of numbers each, transposed */
            for (int t = 0; t < LANES; t++) {
                floats low = head_numbers(head, head->keys, token + t, i), high = head_numbers(head, head->keys, token + t, i + LANES);
                _mm512_store_si512(pairs[t], (__m512i)_mm512_cvtne2ps_pbh(high, low));
            }
            transpose((float *)pairs, LANES, LANES, scratch->keys + (size_t)(i / 2) * wide + token, wide);
        }
    for (int token = 0; token < wide; token += 2)
        for (int i = 0; i < deep; i += LANES) {
            floats even = head_numbers(head, head->values, token, i), odd = head_numbers(head, head->values, token + 1, i);
            values[((size_t)token / 2 * deep + i) / LANES] = _mm512_or_si512(low_halves(even), high_halves(odd));
        }
    if (head->theta) copy_bias(head, scratch);
}

/* Scores of a query to weights in bfloat16, not yet divided by their sum, which it returns. */
INLINE float softmax_halves(const float *scores, int tokens, float scale, const float *bias, uint16_t *weights) {
    floats maximum = largest_score(scores, tokens, scale, bias), sum = _mm512_setzero_ps();
    for (int i = 0; i < round_up(tokens, PANEL); i += LANES) {
        floats x = key_weights(scores, i, tokens, scale, bias, maximum);
        _mm256_store_si256((__m256i *)(weights + i), (__m256i)_mm512_cvtneps_pbh(x));
        sum = _mm512_add_ps(sum, x);
    }
    return _mm512_reduce_add_ps(sum);
}

/* The context of all queries, in their place. */
static void attend_bytes(const Head *head, HeadScratch *scratch) {
    int tokens = head->tokens, wide = round_up(tokens, PANEL), deep = round_up(head->size, PANEL);
    float scale = LOG2_E / sqrtf((float)head->size);
    float *scores = scratch->scores;
    uint16_t *weights = (uint16_t *)scratch->weights;
    float shares[HALF_ROWS];
    copy_halves(head, scratch);
    start_bytes();
    for (int first = 0; first < tokens; first += HALF_ROWS) {
        int rows = tokens - first < HALF_ROWS ? tokens - first : HALF_ROWS;
        multiply_halves(rows, (uint16_t *)scratch->queries + (size_t)first * deep, deep, scratch->keys, wide, scores);
        for (int r = 0; r < rows; r++)
            shares[r] = 1.0f / softmax_halves(scores + (size_t)r * wide, tokens, scale, head->theta ? scratch->bias + tokens - 1 - (first + r) : NULL, weights + (size_t)r * wide);
        multiply_halves(rows, weights, wide, scratch->values, deep, scores);
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < head->size; i += LANES)
                _mm512_mask_storeu_ps(head->queries + (size_t)(first + r) * head->width + i, lanes_below(head->size, i),
                                      _mm512_mul_ps(_mm512_load_ps(scores + (size_t)r * deep + i), _mm512_set1_ps(shares[r])));
    }
    end_bytes();
}
