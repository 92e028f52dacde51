/* Products of bfloat16 with AMX, in tiles of 16 rows times 32 columns. */
#pragma once
#include "products.h"

#define HALF_ROWS TILE_ROWS /* rows of x that are multiplied at once */
#define DEEP_HALVES 32      /* inputs of a tile */

/* x (16, inputs) by weights (inputs / 2, columns, 2), into `out` (16, columns). Columns are a multiple of 32. Rows of x
   beyond the last one of a text are read, and their results are not used. */
static void multiply_halves(int rows, const uint16_t *x, int inputs, const float *weights, int columns, float *out) {
    (void)rows;
    for (int column = 0; column < columns; column += PANEL) {
        _tile_zero(0);
        _tile_zero(1);
        for (int i = 0; i < inputs; i += DEEP_HALVES) {
            const float *here = weights + (size_t)(i / 2) * columns + column;
            _tile_loadd(4, x + i, inputs * sizeof(uint16_t));
            _tile_loadd(6, here, columns * sizeof(float));
            _tile_loadd(7, here + LANES, columns * sizeof(float));
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
        }
        _tile_stored(0, out + column, columns * sizeof(float));
        _tile_stored(1, out + column + LANES, columns * sizeof(float));
    }
}
