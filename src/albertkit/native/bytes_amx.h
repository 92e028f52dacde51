/* Products of 8-bit numbers with AMX, in tiles of up to 32 rows times 32 columns.

   A tile register has 16 rows of 64 bytes. Four of them keep the sums, two the inputs, two the weights. Quantized rows are
   stored in the same way, (rows / 16, inputs / 64, 16, 64), so that a tile is read from one place. There is room for a
   multiple of 16 rows: what is read beyond the last is not used. */
#pragma once
#include <sys/syscall.h>
#include <unistd.h>
#include "floats.h"

#define DEEP 64     /* the number of inputs is rounded up to this */
#define CHUNK 512   /* inputs that are multiplied at once, so that the weights of a panel stay in the nearest cache */
#define TILE_ROWS 16

#define TILE_BYTES 1024

/* Store 16 inputs of row `row`, from input `first` on. */
INLINE void store_bytes(int8_t *bytes, int width, int rows, int row, int first, __m128i values) {
    (void)rows;
    int8_t *tile = bytes + (size_t)(row / TILE_ROWS) * TILE_ROWS * width + (size_t)(first / DEEP) * TILE_BYTES;
    _mm_store_si128((__m128i *)(tile + row % TILE_ROWS * DEEP + first % DEEP), values);
}

/* Make Linux allow the tile registers for all threads of this process. Returns 0 if it does. */
INLINE int allow_bytes(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return (int)syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
}

/* Tile registers are set before a product, and freed after it: threads change faster when they are free. */
INLINE void start_bytes(void) {
    static const struct { uint8_t palette, start_row, unused[14]; uint16_t columns[16]; uint8_t rows[16]; } __attribute__((aligned(64))) config = {
        1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS}};
    _tile_loadconfig(&config);
}
INLINE void end_bytes(void) { _tile_release(); }

/* 16 or 32 rows of x by some rows of weights (inputs / 4, 32, 4), added to `sums` (rows, 32) or stored there. */
INLINE void byte_tile(int is_tall, int is_first, const int8_t *x, int width, const uint8_t *weights, int inputs, int32_t *sums) {
    const size_t step = PANEL * sizeof(int32_t);
    int32_t *lower = sums + (size_t)TILE_ROWS * PANEL;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (!is_first) {
        _tile_loadd(0, sums, step);
        _tile_loadd(1, sums + LANES, step);
    }
    if (!is_first && is_tall) {
        _tile_loadd(2, lower, step);
        _tile_loadd(3, lower + LANES, step);
    }
    for (int i = 0; i < inputs; i += DEEP) {
        const uint8_t *here = weights + (size_t)i * PANEL;
        const int8_t *tile = x + (size_t)i * TILE_ROWS;
        _tile_loadd(4, tile, DEEP);
        _tile_loadd(6, here, 4 * PANEL);
        _tile_loadd(7, here + 64, 4 * PANEL);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        if (is_tall) {
            _tile_loadd(5, tile + (size_t)TILE_ROWS * width, DEEP);
            _tile_dpbsud(2, 5, 6);
            _tile_dpbsud(3, 5, 7);
        }
    }
    _tile_stored(0, sums, step);
    _tile_stored(1, sums + LANES, step);
    if (is_tall) {
        _tile_stored(2, lower, step);
        _tile_stored(3, lower + LANES, step);
    }
}

/* All rows by one panel of weights, into `out` (rows, 32). */
static void multiply_bytes(int rows, const int8_t *x, int width, const uint8_t *weights, int inputs, int32_t *out) {
    for (int first = 0; first < inputs; first += CHUNK) {
        int count = inputs - first < CHUNK ? inputs - first : CHUNK;
        for (int row = 0; row < rows; row += 2 * TILE_ROWS) {
            const int8_t *here = x + (size_t)row * width + (size_t)first * TILE_ROWS;
            const uint8_t *part = weights + (size_t)first * PANEL;
            int32_t *sums = out + (size_t)row * PANEL;
            if (rows - row > TILE_ROWS) byte_tile(1, first == 0, here, width, part, count, sums);
            else byte_tile(0, first == 0, here, width, part, count, sums);
        }
    }
}
