/* The layers of ALBERT over a batch of texts, in 8 bits or floats, for x86-64 processors with AVX-512 VNNI, AVX-512 bf16 or AMX.

   In: hidden states (texts, length, H), and the length of each text. Out: the same array after some layers. Padding is
   not computed. `runtime/native_layers.py` is the only caller; without this library, onnxruntime computes the same.

   A layer is a sequence of steps. Texts do not depend on each other, so each thread takes some texts through all layers,
   and what it needs stays in its cache. With few texts, all threads share each step: products by their columns, attention
   by text and head, the rest by rows. */
#include "attention.h"
#ifdef __AVX512BF16__
#include "attention_halves.h"
#else
#define attend_bytes attend
#endif
#include "embedding.h"
#include "threads.h"

#define INTERFACE 1     /* changes with the functions and types that Python uses: an older library is not used */
#define TASK_TOKENS 192 /* of the texts that one thread takes at once, about */
#define SHARED_TASKS 4  /* for each thread, in a shared step */
enum { QKV, OUTPUT, UP, DOWN, PRODUCTS };
enum { QUANTIZE_STATES, PROJECT, ATTEND, QUANTIZE_CONTEXT, ADD_CONTEXT, NORM_MIDDLE, WIDEN, QUANTIZE_INNER, NARROW, NORM_END, STEPS };

typedef struct {
    int hidden, heads, head_size, inner, activation, reach, layers, threads;
    float eps, shift;
} Shape;

typedef struct {
    Product products[PRODUCTS];
    float *norms[4]; /* attention scale and shift, feed-forward scale and shift */
    float *theta;    /* (heads, 2 reach + 1), or NULL */
} Layer;

/* Some texts of a batch, one after the other, and all that their layers compute. */
typedef struct {
    int texts, tokens, room;
    const int *starts;              /* (texts + 1,) the first token of each text, in the batch */
    FloatRows states, mixed, inner; /* H; queries, keys and values, then the context in place of queries; F */
    ByteRows narrow, wide;          /* quantized rows of states and context, and of the inner ones */
} Part;

typedef struct {
    Shape shape;
    int wide_hidden, wide_inner, wide_qkv; /* widths of rows, rounded up */
    Layer *layers;
    Pool *pool;
    Part *parts;        /* one for each thread; a shared job uses the first one */
    HeadScratch *heads; /* one for each thread */
} Model;

typedef struct {
    Model *model;
    const int32_t *order; /* the number of the layer at each depth */
    int depth, length;
    float *hidden;
    int *starts;          /* (texts + 1,) the first token of each text */
    int *groups;          /* (tasks + 1,) the first text of each task */
} Job;

/* Quantize rows as the inputs of a product in 8 bits; products in floats read the rows themselves. */
static void quantize_rows(const Product *product, FloatRows rows, const ByteRows *to, int all, int first, int last) {
    for (int r = first; product->bytes && r < last; r++) quantize_row(rows.numbers + (size_t)r * rows.width, product, to, all, r);
}

/* The attention of one head in one text. */
static void attend_head(const Model *model, const Layer *layer, const Part *part, HeadScratch *scratch, int text, int number) {
    const Shape *shape = &model->shape;
    int all = shape->heads * shape->head_size;
    size_t first = part->starts[text] - part->starts[0];
    float *queries = part->mixed.numbers + first * part->mixed.width + number * shape->head_size;
    Head head = {
        .queries = queries, .keys = queries + all, .values = queries + 2 * all, .width = part->mixed.width,
        .tokens = part->starts[text + 1] - part->starts[text], .size = shape->head_size,
        .theta = layer->theta ? layer->theta + (size_t)number * (2 * shape->reach + 1) : NULL, .reach = shape->reach,
    };
    if (layer->products[QKV].bytes) attend_bytes(&head, scratch);
    else attend(&head, scratch);
}

static int task_start(int count, int task, int tasks) { return (int)((int64_t)count * task / tasks); }

/* One of the tasks of a step. */
static void run_step(const Model *model, const Layer *layer, const Part *part, HeadScratch *scratch, int step, int task, int tasks) {
    const Shape *shape = &model->shape;
    const Product *products = layer->products;
    int rows = part->tokens, row = task_start(rows, task, tasks), last_row = task_start(rows, task + 1, tasks);
#define COLUMNS(product) task_start(panel_count(product), task, tasks), task_start(panel_count(product), task + 1, tasks)
    switch (step) {
    case QUANTIZE_STATES:
        quantize_rows(&products[QKV], part->states, &part->narrow, rows, row, last_row);
        break;
    case PROJECT:
        multiply(&products[QKV], &part->narrow, part->states, rows, COLUMNS(&products[QKV]), (Epilogue){.out = part->mixed});
        break;
    case ATTEND:
        for (int i = task_start(part->texts * shape->heads, task, tasks); i < task_start(part->texts * shape->heads, task + 1, tasks); i++)
            attend_head(model, layer, part, scratch, i / shape->heads, i % shape->heads);
        break;
    case QUANTIZE_CONTEXT:
        quantize_rows(&products[OUTPUT], part->mixed, &part->narrow, rows, row, last_row);
        break;
    case ADD_CONTEXT:
        multiply(&products[OUTPUT], &part->narrow, part->mixed, rows, COLUMNS(&products[OUTPUT]), (Epilogue){.out = part->states, .is_added = 1});
        break;
    case NORM_MIDDLE:
    case NORM_END:
        for (int r = row; r < last_row; r++)
            norm_row(part->states.numbers + (size_t)r * part->states.width, layer->norms + (step == NORM_END ? 2 : 0), shape->hidden, shape->eps);
        if (step == NORM_MIDDLE) quantize_rows(&products[UP], part->states, &part->narrow, rows, row, last_row);
        break;
    case WIDEN:
        multiply(&products[UP], &part->narrow, part->states, rows, COLUMNS(&products[UP]),
                 (Epilogue){.out = part->inner, .is_activated = 1, .activation = shape->activation, .shift = products[DOWN].bytes ? shape->shift : 0});
        break;
    case QUANTIZE_INNER:
        quantize_rows(&products[DOWN], part->inner, &part->wide, rows, row, last_row);
        break;
    case NARROW:
        multiply(&products[DOWN], &part->wide, part->inner, rows, COLUMNS(&products[DOWN]), (Epilogue){.out = part->states, .is_added = 1});
        break;
    }
#undef COLUMNS
}

/* The number of tasks of a step that all threads share. */
static int task_count(const Model *model, const Layer *layer, const Part *part, int step) {
    static const int PRODUCT_OF[STEPS] = {[QUANTIZE_STATES] = QKV, [PROJECT] = QKV, [QUANTIZE_CONTEXT] = OUTPUT, [ADD_CONTEXT] = OUTPUT,
                                          [WIDEN] = UP, [QUANTIZE_INNER] = DOWN, [NARROW] = DOWN};
    int most = SHARED_TASKS * model->shape.threads, count = part->tokens;
    const Product *product = &layer->products[PRODUCT_OF[step]];
    if (step == ATTEND) return part->texts * model->shape.heads;
    if (step == PROJECT || step == ADD_CONTEXT || step == WIDEN || step == NARROW) count = panel_count(product);
    else if (step != NORM_MIDDLE && step != NORM_END && !product->bytes) return 0;
    return count < most ? count : most;
}

/* Hidden states with padding to the packed ones of a part, or back. */
static void copy_states(const Job *job, const Part *part, int first_text, int is_back) {
    size_t size = job->model->shape.hidden;
    for (int text = 0; text < part->texts; text++)
        for (int row = part->starts[text]; row < part->starts[text + 1]; row++) {
            float *padded = job->hidden + ((size_t)(first_text + text) * job->length + row - part->starts[text]) * size;
            float *packed = part->states.numbers + (size_t)(row - part->starts[0]) * part->states.width;
            memcpy(is_back ? padded : packed, is_back ? packed : padded, sizeof(float) * size);
        }
}

static void free_part(Part *part) {
    FloatRows *floats[] = {&part->states, &part->mixed, &part->inner};
    ByteRows *bytes[] = {&part->narrow, &part->wide};
    for (int i = 0; i < 3; i++) free(floats[i]->numbers), floats[i]->numbers = NULL;
    for (int i = 0; i < 2; i++) {
        free(bytes[i]->bytes), free(bytes[i]->scale), free(bytes[i]->offsets);
        bytes[i]->bytes = NULL, bytes[i]->scale = NULL, bytes[i]->offsets = NULL;
    }
    part->room = 0;
}

/* Room for some tokens. Returns 0, or -1 without memory. */
static int reserve_part(Part *part, int tokens) {
    if (tokens <= part->room) return 0;
    FloatRows *floats[] = {&part->states, &part->mixed, &part->inner};
    ByteRows *bytes[] = {&part->narrow, &part->wide};
    size_t most = round_up(tokens, LANES);
    int is_complete = 1;
    free_part(part);
    for (int i = 0; i < 3; i++) is_complete &= (floats[i]->numbers = aligned(sizeof(float) * most * floats[i]->width)) != NULL;
    for (int i = 0; i < 2; i++) {
        is_complete &= (bytes[i]->bytes = aligned(most * bytes[i]->width)) != NULL;
        is_complete &= (bytes[i]->scale = aligned(sizeof(float) * most)) != NULL;
        is_complete &= (bytes[i]->offsets = aligned(sizeof(int32_t) * most)) != NULL;
    }
    if (is_complete) part->room = tokens;
    return is_complete ? 0 : -1;
}

static void set_part(Part *part, const Job *job, int first_text, int last_text) {
    part->texts = last_text - first_text;
    part->starts = job->starts + first_text;
    part->tokens = part->starts[part->texts] - part->starts[0];
}

/* A thread takes some texts through all layers. */
static void run_texts(void *given, int phase, int task, int thread) {
    (void)phase;
    Job *job = given;
    Part *part = &job->model->parts[thread];
    set_part(part, job, job->groups[task], job->groups[task + 1]);
    copy_states(job, part, job->groups[task], 0);
    for (int depth = 0; depth < job->depth; depth++)
        for (int step = 0; step < STEPS; step++)
            run_step(job->model, &job->model->layers[job->order[depth]], part, &job->model->heads[thread], step, 0, 1);
    copy_states(job, part, job->groups[task], 1);
}

/* Threads share a step. */
static void run_shared(void *given, int phase, int task, int thread) {
    Job *job = given;
    const Layer *layer = &job->model->layers[job->order[phase / STEPS]];
    run_step(job->model, layer, job->model->parts, &job->model->heads[thread], phase % STEPS, task, job->model->pool->phases[phase].tasks);
}

/* Divide the texts into groups of similar size, for each thread the same number. Returns how many. */
static int divide(Job *job, int texts, int threads) {
    int tokens = job->starts[texts], count = 0;
    int wanted = (tokens + TASK_TOKENS - 1) / TASK_TOKENS;
    wanted = round_up(wanted, threads);
    for (int text = 0; text < texts; text++)
        if (!count || job->starts[text] >= task_start(tokens, count, wanted)) job->groups[count++] = text;
    job->groups[count] = texts;
    return count;
}

static int run_job(Job *job, const int32_t *lengths, int texts) {
    Model *model = job->model;
    int threads = model->shape.threads, longest = 0, largest = 0;
    job->starts[0] = 0;
    for (int text = 0; text < texts; text++) {
        job->starts[text + 1] = job->starts[text] + lengths[text];
        longest = lengths[text] > longest ? lengths[text] : longest;
    }
    if (!job->starts[texts] || !job->depth) return 0;
    int groups = divide(job, texts, threads), is_shared = threads > 1 && groups < threads;
    for (int group = 0; group < groups; group++) {
        int tokens = job->starts[job->groups[group + 1]] - job->starts[job->groups[group]];
        largest = tokens > largest ? tokens : largest;
    }
    for (int t = 0; t < threads; t++)
        if (reserve_part(&model->parts[t], !is_shared ? largest : t ? 0 : job->starts[texts]) ||
            reserve_head(&model->heads[t], longest, model->shape.head_size))
            return -1;
    if (set_phases(model->pool, is_shared ? STEPS * job->depth : 1)) return -1;
    if (!is_shared) {
        model->pool->phases[0].tasks = groups;
        run_phases(model->pool, run_texts, job);
        return 0;
    }
    set_part(model->parts, job, 0, texts);
    for (int p = 0; p < model->pool->phase_count; p++)
        model->pool->phases[p].tasks = task_count(model, &model->layers[job->order[p / STEPS]], model->parts, p % STEPS);
    copy_states(job, model->parts, 0, 0);
    run_phases(model->pool, run_shared, job);
    copy_states(job, model->parts, 0, 1);
    return 0;
}

/* The functions that Python calls ---------------------------------------------------------------------------------- */

static int cannot_start;
static void start(void) { cannot_start = allow_bytes() || pthread_atfork(before_fork, after_fork, after_fork); }

/* Call first, any number of times. Returns `INTERFACE`, or -1 if the system does not allow tile registers or has no memory. */
EXPORT int albertkit_start(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    return cannot_start ? -1 : INTERFACE;
}

EXPORT void albertkit_free(Model *model);

/* A model without weights; NULL without memory. */
EXPORT Model *albertkit_new(const Shape *shape) {
    Model *model = calloc(1, sizeof *model);
    if (!model) return NULL;
    int context = shape->heads * shape->head_size;
    model->shape = *shape;
    model->layers = calloc(shape->layers, sizeof(Layer));
    model->parts = calloc(shape->threads, sizeof(Part));
    model->heads = calloc(shape->threads, sizeof(HeadScratch));
    model->pool = new_pool(shape->threads);
    if (!model->layers || !model->parts || !model->heads || !model->pool) {
        albertkit_free(model);
        return NULL;
    }
    for (int t = 0; t < shape->threads; t++) {
        Part *part = &model->parts[t];
        part->states.width = round_up(shape->hidden, PANEL);
        part->mixed.width = round_up(3 * context, PANEL) + PANEL; /* keys are read in blocks of 16 numbers */
        part->inner.width = round_up(shape->inner, PANEL);
        part->narrow.width = round_up(shape->hidden > context ? shape->hidden : context, 64);
        part->wide.width = round_up(shape->inner, 64);
    }
    return model;
}

/* Set one product of a layer: `bytes` (outputs, inputs) with a `scale` per output, or `floats`. -1 without memory. */
EXPORT int albertkit_set_product(Model *model, int layer, int place, int outputs, int inputs, const int8_t *bytes,
                          const float *floats, const float *scale, const float *bias, const float *smooth) {
    Product *product = &model->layers[layer].products[place];
    int wide = round_up(outputs, PANEL);
    *product = (Product){.outputs = outputs, .inputs = inputs, .is_unsigned = place == DOWN && bytes};
    product->bias = copy_floats(bias, outputs, wide);
    product->scale = copy_floats(scale, scale ? outputs : 0, wide);
    if (smooth && !(product->smooth = copy_floats(smooth, inputs, round_up(inputs, LANES)))) return -1;
    return product->bias && product->scale ? pack_product(product, bytes, floats) : -1;
}

/* Set the norms of a layer (4, H), and its theta or NULL. -1 without memory. */
EXPORT int albertkit_set_norms(Model *model, int layer, const float *norms, const float *theta) {
    Layer *made = &model->layers[layer];
    int size = model->shape.hidden, count = model->shape.heads * (2 * model->shape.reach + 1);
    for (int i = 0; i < 4; i++)
        if (!(made->norms[i] = copy_floats(norms + (size_t)i * size, size, round_up(size, PANEL)))) return -1;
    if (theta && !(made->theta = copy_floats(theta, count, count))) return -1;
    return 0;
}

/* Apply layers to `hidden` (texts, length, H), in place. -1 without memory. */
EXPORT int albertkit_run(Model *model, float *hidden, const int32_t *lengths, int texts, int length, const int32_t *order, int depth) {
    Job job = {.model = model, .order = order, .depth = depth, .length = length, .hidden = hidden};
    job.starts = malloc(sizeof(int) * (texts + 1));
    job.groups = malloc(sizeof(int) * (texts + 1));
    int result = -1;
    if (job.starts && job.groups) {
        pthread_mutex_lock(&model->pool->call);
        result = run_job(&job, lengths, texts);
        pthread_mutex_unlock(&model->pool->call);
    }
    free(job.starts), free(job.groups);
    return result;
}

EXPORT void albertkit_free(Model *model) {
    if (model->pool) free_pool(model->pool);
    for (int l = 0; model->layers && l < model->shape.layers; l++) {
        for (int p = 0; p < PRODUCTS; p++) free_product(&model->layers[l].products[p]);
        for (int i = 0; i < 4; i++) free(model->layers[l].norms[i]);
        free(model->layers[l].theta);
    }
    for (int t = 0; model->parts && t < model->shape.threads; t++) free_part(&model->parts[t]);
    for (int t = 0; model->heads && t < model->shape.threads; t++) free_head(&model->heads[t]);
    free(model->layers), free(model->parts), free(model->heads), free(model);
}
