/* Local SGD of one small convolutional client, all its steps. kernels.py says what the arguments are.

   Every layer is a convolution: a dense layer behind an image has a kernel as large as the image. Images are stored as
   (row, column, channel) with their zero padding around them, weights as (tap, input, output); channels of outputs are
   padded with zeros to whole vectors. A row is one output position of one example. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && !defined(SIGHTLINE_NARROW)
#define LANES 16
#define TILE 8 /* rows whose sums stay in registers, by two vectors */
#elif defined(__AVX2__)
#define LANES 8
#define TILE 6
#elif defined(__aarch64__)
#define LANES 4
#define TILE 8
#else
#define LANES 4
#define TILE 4
#endif
#define MOST_LAYERS 32
#define ALIGNMENT 64

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4 * LANES), may_alias));
typedef int32_t Mask __attribute__((vector_size(4 * LANES), aligned(4 * LANES), may_alias));

enum { NOTHING = 0, RELU = 1, TANH = 2 };

typedef struct {
  int64_t channels, height, width, outputs, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
  int64_t before, pool_h, pool_w, pool_stride_h, pool_stride_w, pool_pad_h, pool_pad_w, after;
  int64_t weight, bias; /* where they stand in the flat vector; bias -1: none */
} Stage;

typedef struct {
  int64_t stages, classes, parameters, width, chunk;
  float rate, momentum, decay, proximal, step_norm; /* step_norm 0: steps of any length */
} Settings;

/* A stage with its sizes and buffers. */
typedef struct {
  Stage how;
  int64_t depth, wide, image;              /* channels stored per pixel, padded width, numbers of one padded input */
  int64_t tall_out, wide_out, rows, lanes; /* size and rows of one example's output, channels stored per row */
  int64_t tall_pooled, wide_pooled, taps, reach, runs, run;
  int64_t start;                                       /* where its weights begin in the inner vector; bias behind */
  float *in, *out, *before_in, *before_out, *turned;   /* values, gradients, weights as (tap, output, input) */
  int32_t *winner, *base, *tap, *run_at, *pixel;       /* pool's winners; offsets of rows, weights, runs, pixels */
} Layer;

static int64_t whole(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

#if LANES == 16
#define ALL(v) {v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v}
#elif LANES == 8
#define ALL(v) {v, v, v, v, v, v, v, v}
#else
#define ALL(v) {v, v, v, v}
#endif
INLINE Vector spread(float value) { return (Vector)ALL(value); }
INLINE Mask spread_cell(int64_t cell) { return (Mask)ALL((int32_t)cell); }
INLINE Vector choose(Mask mask, Vector a, Vector b) { return (Vector)(((Mask)a & mask) | ((Mask)b & ~mask)); }
INLINE Vector load(const float *at) { return *(const Vector *)at; }
INLINE void store(float *at, Vector value) { *(Vector *)at = value; }

/* ---- sizes and memory ---- */

static void *take(char *memory, int64_t *used, int64_t numbers) {
  void *found = memory ? memory + *used : NULL;
  *used += (4 * numbers + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return found;
}

static void measure(Layer *l, const Stage *s, int64_t depth, int64_t start) {
  l->how = *s;
  l->depth = depth, l->start = start, l->lanes = whole(s->outputs);
  l->wide = s->width + 2 * s->pad_w;
  l->image = (s->height + 2 * s->pad_h) * l->wide * depth;
  l->tall_out = (s->height + 2 * s->pad_h - s->kernel_h) / s->stride_h + 1;
  l->wide_out = (l->wide - s->kernel_w) / s->stride_w + 1;
  l->rows = l->tall_out * l->wide_out;
  l->tall_pooled = l->tall_out, l->wide_pooled = l->wide_out;
  if (s->pool_h) {
    l->tall_pooled = (l->tall_out + 2 * s->pool_pad_h - s->pool_h) / s->pool_stride_h + 1;
    l->wide_pooled = (l->wide_out + 2 * s->pool_pad_w - s->pool_w) / s->pool_stride_w + 1;
  }
  l->taps = s->kernel_h * s->kernel_w, l->reach = l->taps * s->channels;
  const int together = depth == s->channels; /* the pixels of a kernel's row are one run of numbers */
  l->runs = together ? s->kernel_h : l->taps, l->run = together ? s->kernel_w * depth : s->channels;
}

static void place(Layer *l, char *memory, int64_t *used, int64_t chunk) {
  const int64_t outs = chunk * l->rows * l->lanes;
  l->in = take(memory, used, chunk * l->image);
  l->before_in = take(memory, used, chunk * l->image);
  l->out = take(memory, used, outs);
  l->before_out = take(memory, used, outs);
  l->winner = take(memory, used, l->how.pool_h ? chunk * l->tall_pooled * l->wide_pooled * l->lanes : 0);
  l->turned = take(memory, used, l->taps * l->how.outputs * l->depth);
  l->base = take(memory, used, chunk * l->rows);
  l->tap = take(memory, used, l->reach);
  l->run_at = take(memory, used, l->runs);
  l->pixel = take(memory, used, l->taps);
}

/* Zeros around images and behind channels, and where everything stands. */
static void prepare(Layer *l, int64_t chunk) {
  const Stage *s = &l->how;
  memset(l->in, 0, 4 * (size_t)(chunk * l->image));
  memset(l->turned, 0, 4 * (size_t)(l->taps * s->outputs * l->depth));
  for (int64_t r = 0; r < chunk * l->rows; r++) {
    const int64_t y = r % l->rows / l->wide_out, x = r % l->wide_out;
    l->base[r] = (int32_t)(r / l->rows * l->image + (y * s->stride_h * l->wide + x * s->stride_w) * l->depth);
  }
  for (int64_t t = 0; t < l->taps; t++) {
    l->pixel[t] = (int32_t)((t / s->kernel_w * l->wide + t % s->kernel_w) * l->depth);
    for (int64_t c = 0; c < s->channels; c++) l->tap[t * s->channels + c] = (int32_t)(l->pixel[t] + c);
  }
  for (int64_t r = 0; r < l->runs; r++) l->run_at[r] = l->tap[r * l->run];
}

/* Lay the layers out; returns the numbers of the inner vector of weights. Without memory, only count. */
static int64_t lay_out(const Settings *work, const Stage *stages, Layer *layers, char *memory, int64_t *used) {
  int64_t depth = stages[0].channels, start = 0;
  for (int64_t i = 0; i < work->stages; i++) {
    Layer *l = layers + i;
    measure(l, stages + i, depth, start);
    place(l, memory, used, work->chunk);
    if (memory) prepare(l, work->chunk);
    depth = l->lanes;
    start += (l->reach + 1) * l->lanes;
  }
  return start;
}

/* One layer's weights between (output, input, tap) and (tap, input, output), eight outputs at a time: they share lines */
static void copy_layer(const Layer *l, float *flat, float *inner, int inwards) {
  const int64_t channels = l->how.channels, outputs = l->how.outputs;
  for (int64_t c = 0; c < channels; c++)
    for (int64_t first = 0; first < outputs; first += 8)
      for (int64_t t = 0; t < l->taps; t++)
        for (int64_t o = first; o < first + 8 && o < outputs; o++) {
          float *own = flat + (o * channels + c) * l->taps + t, *there = inner + (t * channels + c) * l->lanes + o;
          if (inwards) *there = *own;
          else *own = *there;
        }
}

/* Between the flat vector and the inner one. */
static void copy_weights(const Settings *work, const Layer *layers, float *flat, float *inner, int inwards) {
  for (int64_t i = 0; i < work->stages; i++) {
    const Layer *l = layers + i;
    float *bias = inner + l->start + l->reach * l->lanes;
    copy_layer(l, flat + l->how.weight, inner + l->start, inwards);
    for (int64_t o = 0; o < (l->how.bias >= 0 ? l->how.outputs : 0); o++)
      if (inwards) bias[o] = flat[l->how.bias + o];
      else flat[l->how.bias + o] = bias[o];
  }
}

/* ---- products ---- */

/* to[i] = first + sum over k of from[i][k] w[k], for n rows and 1 or 2 vectors; without first, to[i] is added to */
INLINE void product(const int vectors, const int n, const float *const *from, const int32_t *run_at, int64_t runs,
                    int64_t run, const float *w, int64_t lanes, float *const *to, const float *first) {
  Vector sum[TILE][2];
  UNROLL for (int i = 0; i < n; i++) {
    sum[i][0] = first ? load(first) : load(to[i]);
    if (vectors > 1) sum[i][1] = first ? load(first + LANES) : load(to[i] + LANES);
  }
  for (int64_t r = 0; r < runs; r++) {
    const float *own[TILE];
    UNROLL for (int i = 0; i < n; i++) own[i] = from[i] + run_at[r];
    for (int64_t k = 0; k < run; k++, w += lanes) {
      const Vector a = load(w), b = vectors > 1 ? load(w + LANES) : a;
      UNROLL for (int i = 0; i < n; i++) {
        const Vector value = spread(own[i][k]);
        sum[i][0] += a * value;
        if (vectors > 1) sum[i][1] += b * value;
      }
    }
  }
  UNROLL for (int i = 0; i < n; i++) {
    store(to[i], sum[i][0]);
    if (vectors > 1) store(to[i] + LANES, sum[i][1]);
  }
}

#define PRODUCT(n) \
  case n: \
    if (two) product(2, n, from, run_at, runs, run, w, lanes, to, first); \
    else product(1, n, from, run_at, runs, run, w, lanes, to, first); \
    break

static void product_of(int two, int64_t n, const float *const *from, const int32_t *run_at, int64_t runs, int64_t run,
                       const float *w, int64_t lanes, float *const *to, const float *first) {
  switch (n) {
    PRODUCT(1);
    PRODUCT(2);
    PRODUCT(3);
    PRODUCT(4);
#if TILE >= 6
    PRODUCT(5);
    PRODUCT(6);
#endif
#if TILE >= 8
    PRODUCT(7);
    PRODUCT(8);
#endif
  }
}

/* rows of from (each `step` numbers, or at base) times w, written or added to rows of to */
static void multiply(int64_t rows, const float *from, const int32_t *from_base, int64_t from_step, float *to,
                     const int32_t *to_base, int64_t to_step, const int32_t *run_at, int64_t runs, int64_t run,
                     const float *w, int64_t lanes, const float *first) {
  int64_t tiles = (rows + TILE - 1) / TILE, n;
  for (int64_t row = 0; row < rows; row += n, tiles--) {
    const float *source[TILE];
    float *target[TILE];
    n = (rows - row + tiles - 1) / tiles;
    for (int64_t v = 0; v < lanes; v += 2 * LANES) {
      for (int64_t i = 0; i < n; i++) {
        source[i] = from + (from_base ? from_base[row + i] : (row + i) * from_step);
        target[i] = to + (to_base ? to_base[row + i] : (row + i) * to_step) + v;
      }
      product_of(lanes - v > LANES, n, source, run_at, runs, run, w + v, lanes, target, first ? first + v : NULL);
    }
  }
}

/* gradient[k] (+)= sum over rows of in[base[row] + tap[k]] g[row], for n weights and 1 or 2 vectors */
INLINE void outer(const int vectors, const int n, const int straight, const float *in, const int32_t *base,
                  const int32_t *tap, const float *g, int64_t lanes, int64_t rows, float *gradient, int fresh) {
  Vector sum[2 * TILE][2];
  int64_t at[2 * TILE];
  UNROLL for (int i = 0; i < n; i++) {
    at[i] = straight ? tap[i / 8 * 8] + i % 8 : tap[i];
    sum[i][0] = fresh ? spread(0.0f) : load(gradient + i * lanes);
    if (vectors > 1) sum[i][1] = fresh ? spread(0.0f) : load(gradient + i * lanes + LANES);
  }
  for (int64_t r = 0; r < rows; r++, g += lanes) {
    const float *own = in + base[r];
    const Vector a = load(g), b = vectors > 1 ? load(g + LANES) : a;
    UNROLL for (int i = 0; i < n; i++) {
      const Vector value = spread(own[at[i]]);
      sum[i][0] += a * value;
      if (vectors > 1) sum[i][1] += b * value;
    }
  }
  UNROLL for (int i = 0; i < n; i++) {
    store(gradient + i * lanes, sum[i][0]);
    if (vectors > 1) store(gradient + i * lanes + LANES, sum[i][1]);
  }
}

#define OUTER(n, straight) \
  do { \
    if (two) outer(2, n, straight, in, base, tap, g, lanes, rows, gradient, fresh); \
    else outer(1, n, straight, in, base, tap, g, lanes, rows, gradient, fresh); \
  } while (0)

static void outer_of(int two, int64_t n, const float *in, const int32_t *base, const int32_t *tap, const float *g,
                     int64_t lanes, int64_t rows, float *gradient, int fresh) {
#if TILE >= 8
  if (n == 16) {
    outer(1, 16, 1, in, base, tap, g, lanes, rows, gradient, fresh);
    return;
  }
  if (n == 8 && tap[7] - tap[0] == 7) {
    OUTER(8, 1);
    return;
  }
#endif
  switch (n) {
    case 1: OUTER(1, 0); break;
    case 2: OUTER(2, 0); break;
    case 3: OUTER(3, 0); break;
    case 4: OUTER(4, 0); break;
#if TILE >= 6
    case 5: OUTER(5, 0); break;
    case 6: OUTER(6, 0); break;
#endif
#if TILE >= 8
    case 7: OUTER(7, 0); break;
    case 8: OUTER(8, 0); break;
#endif
  }
}

/* how many weights from k on are summed together */
static int64_t weights_at_once(const Layer *l, int64_t k, int two) {
  const int64_t left = l->reach - k;
  (void)two;
#if TILE >= 8
  const int32_t *tap = l->tap + k;
  if (!two && left >= 16 && tap[7] - tap[0] == 7 && tap[15] - tap[8] == 7) return 16;
#endif
  return left < TILE ? left : TILE;
}

/* the gradients of weights and bias of some rows */
static void sum_gradients(const Layer *l, int64_t row, int64_t rows, float *gradient, int fresh) {
  const int64_t lanes = l->lanes;
  const float *g = l->before_out + row * lanes;
  for (int64_t v = 0; v < lanes; v += 2 * LANES) {
    const int two = lanes - v > LANES;
    for (int64_t k = 0, n; k < l->reach; k += n) {
      n = weights_at_once(l, k, two);
      outer_of(two, n, l->in, l->base + row, l->tap + k, g + v, lanes, rows, gradient + k * lanes + v, fresh);
    }
  }
  float *bias = gradient + l->reach * lanes;
  for (int64_t v = 0; v < lanes; v += LANES) {
    Vector sum = fresh ? spread(0.0f) : load(bias + v);
    for (int64_t r = 0; r < rows; r++) sum += load(g + r * lanes + v);
    store(bias + v, sum);
  }
}

/* ---- activations and pools ---- */

INLINE Vector activate(int64_t kind, Vector x) {
  if (kind == RELU) return choose(x <= spread(0.0f), spread(0.0f), x); /* NaN stays NaN */
  if (kind == TANH)
    for (int i = 0; i < LANES; i++) x[i] = tanhf(x[i]);
  return x;
}

/* g times the derivative, given the output */
INLINE Vector pull_back(int64_t kind, Vector g, Vector y) {
  if (kind == RELU) return choose(y <= spread(0.0f), spread(0.0f), g);
  if (kind == TANH) return g * (spread(1.0f) - y * y);
  return g;
}

typedef struct { int64_t first, stop; } Span;

/* the cells of a window that lie inside */
INLINE Span window(int64_t at, int64_t stride, int64_t pad, int64_t size, int64_t inside) {
  const int64_t first = at * stride - pad, stop = first + size;
  return (Span){first < 0 ? -first : 0, stop > inside ? size - (stop - inside) : size};
}

/* the largest of a window, and which cell it was: the first of equals; NaN wins, as in torch */
INLINE Vector largest(const float *corner, int64_t row, int64_t lanes, int64_t wide, Span ys, Span xs, Mask *winner) {
  Vector most = load(corner + ys.first * row + xs.first * lanes);
  Mask cell = spread_cell(ys.first * wide + xs.first);
  for (int64_t y = ys.first; y < ys.stop; y++)
    for (int64_t x = xs.first; x < xs.stop; x++) {
      const Vector value = load(corner + y * row + x * lanes);
      const Mask more = (value > most) | (value != value);
      most = choose(more, value, most);
      cell = (cell & ~more) | (spread_cell(y * wide + x) & more);
    }
  *winner = cell;
  return most;
}

INLINE void pool_forward(const Layer *l, const float *out, float *to, const Layer *next, int32_t *winner, int64_t high,
                         int64_t wide, const int padded) {
  const Stage *s = &l->how;
  const int64_t row = l->wide_out * l->lanes;
  for (int64_t y = 0; y < l->tall_pooled; y++)
    for (int64_t x = 0; x < l->wide_pooled; x++) {
      const Span ys = padded ? window(y, s->pool_stride_h, s->pool_pad_h, high, l->tall_out) : (Span){0, high};
      const Span xs = padded ? window(x, s->pool_stride_w, s->pool_pad_w, wide, l->wide_out) : (Span){0, wide};
      const float *corner = out + (y * s->pool_stride_h - s->pool_pad_h) * row +
                            (x * s->pool_stride_w - s->pool_pad_w) * l->lanes;
      float *there = to + (y * next->wide + x) * next->depth;
      for (int64_t v = 0; v < l->lanes; v += LANES, winner += LANES) {
        const Vector most = largest(corner + v, row, l->lanes, wide, ys, xs, (Mask *)winner);
        store(there + v, activate(s->after, most));
      }
    }
}

INLINE void pool_backward(const Layer *l, float *to, const float *g, const float *value, const Layer *next,
                          const int32_t *winner, int64_t high, int64_t wide, const int padded) {
  const Stage *s = &l->how;
  const int64_t row = l->wide_out * l->lanes;
  for (int64_t y = 0; y < l->tall_pooled; y++)
    for (int64_t x = 0; x < l->wide_pooled; x++) {
      const Span ys = padded ? window(y, s->pool_stride_h, s->pool_pad_h, high, l->tall_out) : (Span){0, high};
      const Span xs = padded ? window(x, s->pool_stride_w, s->pool_pad_w, wide, l->wide_out) : (Span){0, wide};
      float *corner = to + (y * s->pool_stride_h - s->pool_pad_h) * row +
                      (x * s->pool_stride_w - s->pool_pad_w) * l->lanes;
      const int64_t there = (y * next->wide + x) * next->depth;
      for (int64_t v = 0; v < l->lanes; v += LANES, winner += LANES) {
        const Mask cell = *(const Mask *)winner;
        const Vector own = pull_back(s->after, load(g + there + v), load(value + there + v));
        for (int64_t cy = ys.first; cy < ys.stop; cy++)
          for (int64_t cx = xs.first; cx < xs.stop; cx++) {
            float *at = corner + cy * row + cx * l->lanes + v;
            store(at, load(at) + (Vector)((Mask)own & (cell == spread_cell(cy * wide + cx))));
          }
      }
    }
}

static int plain_pool(const Stage *s) { return s->pool_h == 2 && s->pool_w == 2 && !s->pool_pad_h && !s->pool_pad_w; }

/* from a layer's output to the next one's input, example by example */
static void hand_on(const Layer *l, const Layer *next, int64_t examples) {
  const Stage *s = &l->how;
  const int64_t size = l->rows * l->lanes, pooled = l->tall_pooled * l->wide_pooled * l->lanes;
  for (int64_t b = 0; b < examples; b++) {
    float *out = l->out + b * size;
    float *to = next->in + b * next->image + (next->how.pad_h * next->wide + next->how.pad_w) * next->depth;
    if (s->before)
      for (int64_t i = 0; i < size; i += LANES) store(out + i, activate(s->before, load(out + i)));
    if (plain_pool(s)) pool_forward(l, out, to, next, l->winner + b * pooled, 2, 2, 0);
    else if (s->pool_h) pool_forward(l, out, to, next, l->winner + b * pooled, s->pool_h, s->pool_w, 1);
    else
      for (int64_t r = 0; r < l->rows; r++) {
        float *there = to + (r / l->wide_out * next->wide + r % l->wide_out) * next->depth;
        for (int64_t v = 0; v < l->lanes; v += LANES) store(there + v, activate(s->after, load(out + r * l->lanes + v)));
      }
  }
}

/* from the gradient of the next layer's input to that of a layer's output */
static void hand_back(const Layer *l, const Layer *next, int64_t examples) {
  const Stage *s = &l->how;
  const int64_t size = l->rows * l->lanes, pooled = l->tall_pooled * l->wide_pooled * l->lanes;
  for (int64_t b = 0; b < examples; b++) {
    const int64_t first = b * next->image + (next->how.pad_h * next->wide + next->how.pad_w) * next->depth;
    const float *g = next->before_in + first, *value = next->in + first, *out = l->out + b * size;
    float *to = l->before_out + b * size;
    if (s->pool_h) memset(to, 0, 4 * (size_t)size);
    if (plain_pool(s)) pool_backward(l, to, g, value, next, l->winner + b * pooled, 2, 2, 0);
    else if (s->pool_h) pool_backward(l, to, g, value, next, l->winner + b * pooled, s->pool_h, s->pool_w, 1);
    else
      for (int64_t r = 0; r < l->rows; r++) {
        const int64_t there = (r / l->wide_out * next->wide + r % l->wide_out) * next->depth;
        for (int64_t v = 0; v < l->lanes; v += LANES)
          store(to + r * l->lanes + v, pull_back(s->after, load(g + there + v), load(value + there + v)));
      }
    if (s->before)
      for (int64_t i = 0; i < size; i += LANES) store(to + i, pull_back(s->before, load(to + i), load(out + i)));
  }
}

/* ---- one step ---- */

/* (channel, row, column) images into the padded input of the first layer */
static void read_images(const Layer *l, const float *x, const int64_t *rows, int64_t examples) {
  const Stage *s = &l->how;
  for (int64_t b = 0; b < examples; b++) {
    const float *from = x + rows[b] * s->channels * s->height * s->width;
    for (int64_t c = 0; c < s->channels; c++)
      for (int64_t y = 0; y < s->height; y++, from += s->width) {
        float *to = l->in + b * l->image + ((y + s->pad_h) * l->wide + s->pad_w) * l->depth + c;
        if (l->depth == 1) memcpy(to, from, 4 * (size_t)s->width);
        else
          for (int64_t i = 0; i < s->width; i++) to[i * l->depth] = from[i];
      }
  }
}

/* share (softmax - onehot) of the last layer's outputs */
static void errors(const Layer *l, int64_t classes, const int64_t *y, const int64_t *rows, int64_t examples, float share) {
  memset(l->before_out, 0, 4 * (size_t)(examples * l->lanes));
  for (int64_t b = 0; b < examples; b++) {
    const float *out = l->out + b * l->lanes;
    float *g = l->before_out + b * l->lanes, most = out[0], sum = 0.0f;
    for (int64_t c = 1; c < classes; c++) most = out[c] > most ? out[c] : most;
    for (int64_t c = 0; c < classes; c++) sum += g[c] = expf(out[c] - most);
    for (int64_t c = 0; c < classes; c++) g[c] *= share / sum;
    g[y[rows[b]]] -= share;
  }
}

/* weights as (tap, output, input), by which gradients go back */
static void turn_weights(const Layer *l, const float *weight) {
  const int64_t channels = l->how.channels, outputs = l->how.outputs;
  for (int64_t t = 0; t < l->taps; t++)
    for (int64_t o = 0; o < outputs; o++) {
      float *to = l->turned + (t * outputs + o) * l->depth;
      const float *from = weight + t * channels * l->lanes + o;
      for (int64_t c = 0; c < channels; c++) to[c] = from[c * l->lanes];
    }
}

static void forward(const Settings *work, const Layer *layers, const float *inner, int64_t examples) {
  for (int64_t i = 0; i < work->stages; i++) {
    const Layer *l = layers + i;
    const float *weight = inner + l->start, *bias = weight + l->reach * l->lanes;
    multiply(examples * l->rows, l->in, l->base, 0, l->out, NULL, l->lanes, l->run_at, l->runs, l->run, weight, l->lanes,
             bias);
    if (i + 1 < work->stages) hand_on(l, l + 1, examples);
  }
}

static void backward(const Settings *work, const Layer *layers, float *gradient, int64_t examples, int fresh) {
  static const int32_t no_offset[1] = {0};
  for (int64_t i = work->stages - 1; i >= 0; i--) {
    const Layer *l = layers + i;
    const int64_t rows = examples * l->rows, some = l->rows * ((63 + l->rows) / l->rows); /* what stays in the cache */
    for (int64_t row = 0; row < rows; row += some)
      sum_gradients(l, row, rows - row < some ? rows - row : some, gradient + l->start, fresh && row == 0);
    if (i == 0) return;
    memset(l->before_in, 0, 4 * (size_t)(examples * l->image));
    for (int64_t row = 0; row < rows; row += some)
      for (int64_t t = 0; t < l->taps; t++)
        multiply(rows - row < some ? rows - row : some, l->before_out + row * l->lanes, NULL, l->lanes,
                 l->before_in + l->pixel[t], l->base + row, 0, no_offset, 1, l->how.outputs,
                 l->turned + t * l->how.outputs * l->depth, l->depth, NULL);
    hand_back(l - 1, l, examples);
  }
}

/* padding holds zeros, whatever a gradient held */
static void clear_padding(const Settings *work, const Layer *layers, float *gradient) {
  for (int64_t i = 0; i < work->stages; i++) {
    const Layer *l = layers + i;
    for (int64_t k = 0; k <= l->reach; k++)
      for (int64_t o = k < l->reach || l->how.bias >= 0 ? l->how.outputs : 0; o < l->lanes; o++)
        gradient[l->start + k * l->lanes + o] = 0.0f;
  }
}

static void add_terms(const Settings *work, const float *w, float *gradient, const float *anchor, const float *linear,
                      const float *mask, int64_t d) {
  if (work->decay != 0.0f)
    for (int64_t i = 0; i < d; i++) gradient[i] += work->decay * w[i];
  if (anchor)
    for (int64_t i = 0; i < d; i++) gradient[i] += work->proximal * (w[i] - anchor[i]);
  if (linear)
    for (int64_t i = 0; i < d; i++) gradient[i] += linear[i];
  if (mask)
    for (int64_t i = 0; i < d; i++) gradient[i] *= mask[i];
  if (work->step_norm > 0.0f) {
    double square = 0.0;
    for (int64_t i = 0; i < d; i++) square += (double)gradient[i] * gradient[i];
    const float norm = (float)sqrt(square);
    if (!(norm <= work->step_norm)) /* also where it is NaN */
      for (int64_t i = 0; i < d; i++) gradient[i] *= work->step_norm / norm;
  }
}

static void mean_gradient(const Settings *work, const Layer *layers, const float *inner, float *gradient, const float *x,
                          const int64_t *y, const int64_t *rows, int64_t count) {
  int64_t chunks = (count + work->chunk - 1) / work->chunk, n;
  for (int64_t i = 1; i < work->stages; i++) turn_weights(layers + i, inner + layers[i].start);
  for (int64_t first = 0; first < count; first += n, chunks--) {
    n = (count - first + chunks - 1) / chunks;
    read_images(layers, x, rows + first, n);
    forward(work, layers, inner, n);
    errors(layers + work->stages - 1, work->classes, y, rows + first, n, 1.0f / (float)count);
    backward(work, layers, gradient, n, first == 0);
  }
  clear_padding(work, layers, gradient);
}

/* how many bytes `memory` must have */
int64_t sightline_conv_bytes(const Settings *work, const Stage *stages) {
  Layer layers[MOST_LAYERS];
  int64_t used = 0;
  if (work->stages < 1 || work->stages > MOST_LAYERS) return -1;
  const int64_t d = lay_out(work, stages, layers, NULL, &used);
  for (int i = 0; i < 6; i++) take(NULL, &used, d);
  return used + ALIGNMENT;
}

static float *inner_copy(const Settings *work, const Layer *layers, const float *flat, char *memory, int64_t *used,
                         int64_t d) {
  float *found = take(memory, used, d);
  memset(found, 0, 4 * (size_t)d);
  if (flat) copy_weights(work, layers, (float *)flat, found, 1);
  return flat ? found : NULL;
}

void sightline_conv_walk(const Settings *work, const Stage *stages, char *memory, float *w, const float *anchor,
                         const float *linear, const float *mask, const float *x, const int64_t *y, const int64_t *table,
                         int64_t steps) {
  Layer layers[MOST_LAYERS];
  int64_t used = 0;
  memory = (char *)(((uintptr_t)memory + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  const int64_t d = lay_out(work, stages, layers, memory, &used);
  float *gradient = take(memory, &used, d), *velocity = take(memory, &used, d);
  memset(gradient, 0, 4 * (size_t)d);
  memset(velocity, 0, 4 * (size_t)d);
  float *inner = inner_copy(work, layers, w, memory, &used, d);
  anchor = inner_copy(work, layers, anchor, memory, &used, d);
  linear = inner_copy(work, layers, linear, memory, &used, d);
  mask = inner_copy(work, layers, mask, memory, &used, d);
  for (int64_t step = 0; step < steps; step++) {
    const int64_t *rows = table + step * work->width;
    int64_t count = 0;
    while (count < work->width && rows[count] >= 0) count++;
    mean_gradient(work, layers, inner, gradient, x, y, rows, count);
    add_terms(work, inner, gradient, anchor, linear, mask, d);
    if (work->momentum != 0.0f)
      for (int64_t i = 0; i < d; i++) velocity[i] = work->momentum * velocity[i] + gradient[i];
    const float *direction = work->momentum != 0.0f ? velocity : gradient;
    for (int64_t i = 0; i < d; i++) inner[i] -= work->rate * direction[i];
  }
  copy_weights(work, layers, w, inner, 0);
}
