// A stand-in for onnxruntime-web: a file "layer.onnx" contains "layer", and the function of this name computes its output.
// `globalThis.infinite` makes the first number of each text infinite.
const SIZE = 4;

export const env = { wasm: {} };

export class Tensor {
  constructor(type, data, dims) {
    Object.assign(this, { type, data, dims });
  }
}

const rows = (width, compute) => ({ x }) => {
  const data = new Float32Array(x.dims[0] * width);
  for (let row = 0; row < x.dims[0]; row++) data.set(compute(x.data.subarray(row * SIZE, (row + 1) * SIZE)), row * width);
  return new Tensor("float32", data, [x.dims[0], width]);
};

const PARTS = {
  embedding({ ids }) {
    const data = Float32Array.from(ids.data, Number).reduce((all, id, at) => {
      all.set([1 + (id % 7), (id % 11) / 10, (id % 13) / 5, 0.5], at * SIZE);
      return all;
    }, new Float32Array(ids.data.length * SIZE));
    if (globalThis.infinite) for (let row = 0; row < ids.dims[0]; row++) data[row * ids.dims[1] * SIZE] = Infinity;
    return new Tensor("float32", data, [...ids.dims, SIZE]);
  },
  layer({ hidden: { data, dims } }) {
    const mixed = data.map((x, i) => 0.9 * x + 0.3 * data[i % SIZE === SIZE - 1 ? i + 1 - SIZE : i + 1]);
    return new Tensor("float32", mixed, dims);
  },
  pooler: rows(SIZE, (x) => x.map(Math.tanh)),
  classify: rows(2, (x) => [x[0], x[1] + x[2]]),
  tag: rows(3, (x) => [x[0], 3 * x[1], x[2]]),
  mlm: rows(30000, (x) => Array.from({ length: 30000 }, (_, id) => x[id % SIZE] * Math.sin(id))),
};

export const InferenceSession = {
  async create(bytes) {
    const compute = PARTS[new TextDecoder().decode(bytes)];
    if (!compute) throw new Error("no model");
    return { outputNames: ["out"], run: async (fed) => ({ out: compute(fed) }) };
  },
};
