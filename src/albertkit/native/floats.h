/* Products of floats in tiles: up to 12 rows times 32 columns, whose sums stay in registers.

   A tile adds up along the inputs in their order, in chunks, so a row has the same result in every batch. */
#pragma once
#include "vectors.h"

#define PANEL 32     /* columns of a tile: two vectors */
#define MOST_ROWS 12 /* rows of a tile: 12 x 2 sums, two vectors of weights and one input fill the registers */
#define AHEAD 512    /* bytes of weights that are fetched before they are needed */
#define FLOAT_CHUNK 256 /* inputs that are added up before they are added to the sums: long sums of floats lose digits */

#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)

INLINE void fetch(const void *weights) {
    _mm_prefetch((const char *)weights + AHEAD, _MM_HINT_T0);
    _mm_prefetch((const char *)weights + AHEAD + 64, _MM_HINT_T0);
}

/* Rows are computed in groups of similar size, of at most 12: how many there are, where one begins, and which has a row. */
INLINE int group_count(int rows) { return (rows + MOST_ROWS - 1) / MOST_ROWS; }
INLINE int group_start(int rows, int group) { return group * rows / group_count(rows); }
INLINE int group_of(int rows, int row) { return ((row + 1) * group_count(rows) - 1) / rows; }

/* x (rows, inputs) by weights (inputs, 32), into `out` (rows, 32) or added to it. The steps are between rows of each. */
INLINE void float_tile(int rows, int is_added, const float *x, int x_step, const float *weights, int weights_step, int inputs, float *out, int out_step) {
#define START(r) floats left##r = _mm512_setzero_ps(), right##r = left##r;
    EACH_ROW(START)
    for (int i = 0; i < inputs; i++, weights += weights_step) {
        floats left = _mm512_loadu_ps(weights), right = _mm512_loadu_ps(weights + LANES);
        fetch(weights);
#define STEP(r)                                                        \
    if (r < rows) {                                                    \
        floats value = _mm512_set1_ps(x[(size_t)r * x_step + i]);      \
        left##r = _mm512_fmadd_ps(value, left, left##r);               \
        right##r = _mm512_fmadd_ps(value, right, right##r);            \
    }
        EACH_ROW(STEP)
#undef STEP
    }
#define STORE(r)                                                        \
    if (r < rows) {                                                     \
        float *to = out + (size_t)r * out_step;                         \
        if (is_added) {                                                 \
            left##r = _mm512_add_ps(left##r, _mm512_loadu_ps(to));      \
            right##r = _mm512_add_ps(right##r, _mm512_loadu_ps(to + LANES)); \
        }                                                               \
        _mm512_storeu_ps(to, left##r);                                  \
        _mm512_storeu_ps(to + LANES, right##r);                         \
    }
    EACH_ROW(STORE)
#undef STORE
#undef START
}

/* Any number of rows up to 12, each with code of its own, and any number of inputs, in chunks. */
static void multiply_floats(int rows, const float *x, int x_step, const float *weights, int weights_step, int inputs, float *out, int out_step) {
#define CASE(r) case r + 1: float_tile(r + 1, first > 0, x + first, x_step, weights + (size_t)first * weights_step, weights_step, count, out, out_step); break;
    for (int first = 0; first < inputs; first += FLOAT_CHUNK) {
        int count = inputs - first < FLOAT_CHUNK ? inputs - first : FLOAT_CHUNK;
        switch (rows) { EACH_ROW(CASE) }
    }
#undef CASE
}
