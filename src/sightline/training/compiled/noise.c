/* Normal numbers from raw words: the same function of them as draw_gaussian in dp_sgd_settings.py.

   z = sqrt(-2 ln u) (cos t, sin t); u is the magnitude of a word, t the lower half of another pair's word. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 512

static inline float as_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t as_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

/* ln u for normal u > 0: u = 2^e m with m in [1/sqrt 2, sqrt 2); coefficients of Cephes' logf */
static inline float natural_log(float u) {
  const uint32_t shifted = as_bits(u) - 0x3f3504f3u; /* from 1/sqrt 2 on */
  const float e = (float)((int32_t)shifted >> 23);
  const float f = as_float((shifted & 0x7fffffu) + 0x3f3504f3u) - 1.0f, square = f * f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  const float tail = f * square * p - 2.12194440e-4f * e - 0.5f * square; /* ln 2 = 0.693359375 - 2.12194440e-4 */
  return (f + tail) + 0.693359375f * e;
}

/* cos and sin of |t| <= pi: t = k pi/2 + x, |x| <= pi/4; coefficients of Cephes' sinf and cosf */
static inline void turn(float t, float *cosine, float *sine) {
  const int32_t k = (int32_t)(t * 0.63661977236758f + (t < 0.0f ? -0.5f : 0.5f));
  const float n = (float)k; /* pi/2 in parts of few bits: n times each is exact */
  const float x = ((t - n * 1.5703125f) - n * 4.837512969970703125e-4f) - n * 7.54978995489188216e-8f;
  const float square = x * x;
  const float s = x + x * square * (-1.6666654611e-1f + square * (8.3321608736e-3f + square * -1.9515295891e-4f));
  const float c = 1.0f - 0.5f * square +
      square * square * (4.166664568298827e-2f + square * (-1.388731625493765e-3f + square * 2.443315711809948e-5f));
  const uint32_t q = (uint32_t)k & 3u, odd = 0u - (q & 1u);
  const uint32_t bits_s = as_bits(s), bits_c = as_bits(c);
  *cosine = as_float(((bits_s & odd) | (bits_c & ~odd)) ^ (((q + 1u) & 2u) << 30));
  *sine = as_float(((bits_c & odd) | (bits_s & ~odd)) ^ ((q & 2u) << 30));
}

/* cosines times radius to both[0..pairs), sines to both[pairs..2 pairs) */
void sightline_normals(const int64_t *words, int64_t pairs, float *both) {
  float u[BLOCK], t[BLOCK];
  for (int64_t first = 0; first < pairs; first += BLOCK) {
    const int64_t n = pairs - first < BLOCK ? pairs - first : BLOCK;
    for (int64_t i = 0; i < n; i++) {
      int64_t other = first + i + pairs / 2;
      other -= other >= pairs ? pairs : 0;
      u[i] = fabsf((float)words[first + i]);
      t[i] = (float)(int32_t)(uint32_t)(uint64_t)words[other];
    }
    float *cosines = both + first, *sines = both + pairs + first;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
      const float size = u[i] * 0x1p-63f, least = size < 0x1p-64f ? 0x1p-64f : size;
      const float radius = sqrtf(-2.0f * natural_log(least));
      float c, s;
      turn(t[i] * 1.4629180792671596e-9f, &c, &s); /* pi / 2^31 */
      cosines[i] = c * radius;
      sines[i] = s * radius;
    }
  }
}
