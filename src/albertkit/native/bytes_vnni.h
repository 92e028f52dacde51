/* Products of 8-bit numbers with AVX-512 VNNI, in tiles of up to 12 rows times 32 columns.

   Quantized rows are stored as a tile reads them: (groups of rows, inputs / 4, rows of the group, 4). */
#pragma once
#include "floats.h"

#define DEEP 16 /* the number of inputs is rounded up to this */

/* sums += weights . x, four 8-bit products for each lane. Written as assembly because compilers move the sums to memory
   and back around the intrinsic. */
#define MULTIPLY_BYTES(sums, weights, x) __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(x))

/* Store 16 inputs of row `row` of `rows`, from input `first` on. */
INLINE void store_bytes(int8_t *bytes, int width, int rows, int row, int first, __m128i values) {
    int group = group_of(rows, row), start = group_start(rows, group), step = 4 * (group_start(rows, group + 1) - start);
    int8_t *out = bytes + (size_t)start * width + 4 * (row - start) + (size_t)(first / 4) * step;
    for (int four = 0; four < 4; four++, out += step, values = _mm_srli_si128(values, 4)) _mm_storeu_si32(out, values);
}

INLINE int allow_bytes(void) { return 0; }
INLINE void start_bytes(void) {}
INLINE void end_bytes(void) {}

/* x (inputs / 4, rows, 4) by weights (inputs / 4, 32, 4), into `out` (rows, 32). */
INLINE void byte_tile(int rows, const int8_t *x, const uint8_t *weights, int inputs, int32_t *out) {
#define START(r) __m512i left##r = _mm512_setzero_si512(), right##r = left##r;
    EACH_ROW(START)
    for (int i = 0; i < inputs; i += 4, weights += 4 * PANEL, x += 4 * rows) {
        __m512i left = _mm512_load_si512(weights), right = _mm512_load_si512(weights + 64);
        fetch(weights);
#define STEP(r)                                                        \
    if (r < rows) {                                                    \
        __m512i value = _mm512_set1_epi32(((const int32_t *)x)[r]);    \
        MULTIPLY_BYTES(left##r, left, value);                          \
        MULTIPLY_BYTES(right##r, right, value);                        \
    }
        EACH_ROW(STEP)
#undef STEP
    }
#define STORE(r)                                                       \
    if (r < rows) {                                                    \
        _mm512_store_si512(out + r * PANEL, left##r);                  \
        _mm512_store_si512(out + r * PANEL + LANES, right##r);         \
    }
    EACH_ROW(STORE)
#undef STORE
#undef START
}

/* All rows by one panel of weights, into `out` (rows, 32). */
static void multiply_bytes(int rows, const int8_t *x, int width, const uint8_t *weights, int inputs, int32_t *out) {
    for (int group = 0; group < group_count(rows); group++) {
        int first = group_start(rows, group);
        const int8_t *here = x + (size_t)first * width;
        int32_t *sums = out + (size_t)first * PANEL;
#define CASE(r) case r + 1: byte_tile(r + 1, here, weights, inputs, sums); break;
        switch (group_start(rows, group + 1) - first) { EACH_ROW(CASE) }
#undef CASE
    }
}
