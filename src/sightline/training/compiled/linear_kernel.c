/* Local SGD of one client of softmax regression, all its steps. kernels.py says what the arguments are. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
  int64_t features, classes, bias, width;
  float rate, momentum, decay, proximal, step_norm; /* step_norm 0: steps of any length */
} Work;

static float dot(const float *a, const float *b, int64_t n) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

static void add(float *to, float by, const float *from, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) to[i] += by * from[i];
}

/* logits become share (softmax - onehot) */
static void errors(float *g, int64_t classes, int64_t target, float share) {
  float most = g[0], sum = 0.0f;
  for (int64_t c = 1; c < classes; c++) most = g[c] > most ? g[c] : most;
  for (int64_t c = 0; c < classes; c++) sum += g[c] = expf(g[c] - most);
  for (int64_t c = 0; c < classes; c++) g[c] *= share / sum;
  g[target] -= share;
}

static void mean_gradient(const Work *work, const float *w, float *gradient, float *g, const float *x, const int64_t *y,
                          const int64_t *rows, int64_t count) {
  const int64_t f = work->features, k = work->classes;
  for (int64_t i = 0; i < f * k + (work->bias ? k : 0); i++) gradient[i] = 0.0f;
  for (int64_t j = 0; j < count; j++) {
    const float *example = x + rows[j] * f;
    for (int64_t c = 0; c < k; c++) g[c] = dot(w + c * f, example, f) + (work->bias ? w[f * k + c] : 0.0f);
    errors(g, k, y[rows[j]], 1.0f / (float)count);
    for (int64_t c = 0; c < k; c++) add(gradient + c * f, g[c], example, f);
    if (work->bias) add(gradient + f * k, 1.0f, g, k);
  }
}

static void add_terms(const Work *work, const float *w, float *gradient, const float *anchor, const float *linear,
                      const float *mask, int64_t d) {
  if (work->decay != 0.0f) add(gradient, work->decay, w, d);
  if (anchor)
    for (int64_t i = 0; i < d; i++) gradient[i] += work->proximal * (w[i] - anchor[i]);
  if (linear) add(gradient, 1.0f, linear, d);
  if (mask)
    for (int64_t i = 0; i < d; i++) gradient[i] *= mask[i];
  if (work->step_norm > 0.0f) {
    const float norm = sqrtf(dot(gradient, gradient, d));
    if (norm > work->step_norm)
      for (int64_t i = 0; i < d; i++) gradient[i] *= work->step_norm / norm;
  }
}

void sightline_walk(const Work *work, float *w, float *velocity, float *gradient, float *g, const float *anchor,
                    const float *linear, const float *mask, const float *x, const int64_t *y, const int64_t *table,
                    int64_t steps) {
  const int64_t d = work->features * work->classes + (work->bias ? work->classes : 0);
  for (int64_t step = 0; step < steps; step++) {
    const int64_t *rows = table + step * work->width;
    int64_t count = 0;
    while (count < work->width && rows[count] >= 0) count++;
    mean_gradient(work, w, gradient, g, x, y, rows, count);
    add_terms(work, w, gradient, anchor, linear, mask, d);
    if (velocity)
      for (int64_t i = 0; i < d; i++) velocity[i] = work->momentum * velocity[i] + gradient[i];
    add(w, -work->rate, velocity ? velocity : gradient, d);
  }
}
