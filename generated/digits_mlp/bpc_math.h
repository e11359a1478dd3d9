// bpc_math.h: element-wise mathematics for generated kernels.
//
// Every function is a scalar, branch-free inline function (selects only), so that a loop marked
// `#pragma omp simd` vectorises around it and a CUDA compiler takes the same text. A fused
// multiply-add happens exactly where bpc_fma is written; the bits are the same for every
// instruction set, with or without FMA hardware. Results are specified under flush-to-zero:
// a subnormal argument counts as zero, a subnormal result is zero.
//
// f32 functions stay within 2 ulp and f64 functions within 2.5 ulp of the exact result (pow in
// f64: 2 ulp while the result is finite), which the tests measure. Polynomials: least maximum
// error fits made for these intervals.
#pragma once
#if defined(__CUDACC_RTC__)  // NVRTC comes without the standard's headers
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

// ---- bits and single instructions ------------------------------------------------------------

#if defined(__CUDACC__)
#define BPC_INLINE static __device__ __forceinline__
#define BPC_UNROLL _Pragma("unroll")
BPC_INLINE uint32_t bpc_bits(float x) { return __float_as_uint(x); }
BPC_INLINE uint64_t bpc_bits(double x) { return uint64_t(__double_as_longlong(x)); }
BPC_INLINE float bpc_from_bits(uint32_t u) { return __uint_as_float(u); }
BPC_INLINE double bpc_from_bits(uint64_t u) { return __longlong_as_double((long long)u); }
BPC_INLINE float bpc_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
BPC_INLINE double bpc_fma(double a, double b, double c) { return __fma_rn(a, b, c); }
BPC_INLINE float bpc_sqrt(float x) { return __fsqrt_rn(x); }
BPC_INLINE double bpc_sqrt(double x) { return __dsqrt_rn(x); }
BPC_INLINE float bpc_floor(float x) { return floorf(x); }
BPC_INLINE double bpc_floor(double x) { return floor(x); }
BPC_INLINE float bpc_abs(float x) { return fabsf(x); }
BPC_INLINE double bpc_abs(double x) { return fabs(x); }
#else
#define BPC_INLINE static inline __attribute__((always_inline))
#define BPC_UNROLL _Pragma("GCC unroll 16")
BPC_INLINE uint32_t bpc_bits(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, sizeof u);
  return u;
}
BPC_INLINE uint64_t bpc_bits(double x) {
  uint64_t u;
  __builtin_memcpy(&u, &x, sizeof u);
  return u;
}
BPC_INLINE float bpc_from_bits(uint32_t u) {
  float x;
  __builtin_memcpy(&x, &u, sizeof x);
  return x;
}
BPC_INLINE double bpc_from_bits(uint64_t u) {
  double x;
  __builtin_memcpy(&x, &u, sizeof x);
  return x;
}
// a * b + c, rounded once: one instruction where there is one, else the C library's exact fma.
BPC_INLINE float bpc_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
BPC_INLINE double bpc_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
BPC_INLINE float bpc_sqrt(float x) { return __builtin_sqrtf(x); }
BPC_INLINE double bpc_sqrt(double x) { return __builtin_sqrt(x); }
BPC_INLINE float bpc_floor(float x) { return __builtin_floorf(x); }
BPC_INLINE double bpc_floor(double x) { return __builtin_floor(x); }
BPC_INLINE float bpc_abs(float x) { return __builtin_fabsf(x); }
BPC_INLINE double bpc_abs(double x) { return __builtin_fabs(x); }
#endif
BPC_INLINE int32_t bpc_abs(int32_t x) { return x < 0 ? -x : x; }
BPC_INLINE int64_t bpc_abs(int64_t x) { return x < 0 ? -x : x; }

template <class T> BPC_INLINE T bpc_rsqrt(T x) { return T(1) / bpc_sqrt(x); }
template <class T> BPC_INLINE T bpc_recip(T x) { return T(1) / x; }
template <class T> BPC_INLINE T bpc_square(T x) { return x * x; }

// -1, 0 or 1; NaN stays NaN.
template <class T> BPC_INLINE T bpc_sign(T x) {
  return x > T(0) ? T(1) : x < T(0) ? T(-1) : x == T(0) ? T(0) : x;
}

// The larger or smaller; the first one if they are equal; NaN if either is NaN.
template <class T> BPC_INLINE T bpc_max(T a, T b) { return ((a >= b) | (a != a)) ? a : b; }
template <class T> BPC_INLINE T bpc_min(T a, T b) { return ((a <= b) | (a != a)) ? a : b; }
template <class T> BPC_INLINE T bpc_clip(T x, T low, T high) {
  return bpc_min(bpc_max(x, low), high);
}

// g * d where a zero gradient stays zero even if the local derivative d is infinite or NaN.
template <class T> BPC_INLINE T bpc_masked_mul(T g, T d) { return g == T(0) ? T(0) : g * d; }

BPC_INLINE bool bpc_isfinite(float x) { return bpc_abs(x) <= 0x1.fffffep+127f; }
BPC_INLINE bool bpc_isfinite(double x) { return bpc_abs(x) <= 0x1.fffffffffffffp+1023; }

BPC_INLINE float bpc_copysign(float magnitude, float sign) {
  return bpc_from_bits((bpc_bits(magnitude) & 0x7fffffffu) | (bpc_bits(sign) & 0x80000000u));
}
BPC_INLINE double bpc_copysign(double magnitude, double sign) {
  const uint64_t top = uint64_t(1) << 63;
  return bpc_from_bits((bpc_bits(magnitude) & ~top) | (bpc_bits(sign) & top));
}

// c[0] + c[1] x + ... by Horner's rule, coefficients written in ascending order.
template <class T> BPC_INLINE T bpc_poly(T, T c) { return c; }
template <class T, class... Rest> BPC_INLINE T bpc_poly(T x, T c, Rest... rest) {
  return bpc_fma(bpc_poly(x, T(rest)...), x, c);
}

#define BPC_INF_F32 bpc_from_bits(uint32_t(0x7f800000))
#define BPC_INF_F64 bpc_from_bits(uint64_t(0x7ff) << 52)
#define BPC_NAN_F32 bpc_from_bits(uint32_t(0x7fc00000))
#define BPC_NAN_F64 bpc_from_bits(uint64_t(0xfff) << 51)

// ---- exp -------------------------------------------------------------------------------------

// x = n ln 2 + r with |r| <= ln 2 / 2. `shifted` holds n in the low bits of its mantissa, so that
// adding bits(shifted) << (mantissa width) to a number's bits multiplies it by 2^n.
struct bpc_exp_parts_f32 {
  float shifted, n, r;
};
struct bpc_exp_parts_f64 {
  double shifted, n, r;
};
BPC_INLINE bpc_exp_parts_f32 bpc_exp_reduce(float x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = bpc_fma(x, 1.44269504f, magic);
  const float n = shifted - magic;
  const float r = bpc_fma(n, 1.90465421e-9f, bpc_fma(n, -0.693147182f, x));
  return {shifted, n, r};
}
BPC_INLINE bpc_exp_parts_f64 bpc_exp_reduce(double x) {
  const double magic = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = bpc_fma(x, 0x1.71547652b82fep+0, magic);
  const double n = shifted - magic;
  const double r = bpc_fma(n, -0x1.abc9e3b39803fp-56, bpc_fma(n, -0x1.62e42fefa39efp-1, x));
  return {shifted, n, r};
}

// exp(r) - 1 for |r| <= ln 2 / 2.
BPC_INLINE float bpc_expm1_core(float r) {
  const float q = bpc_poly(r, 0.5f, 0.166665122f, 0.0416661911f, 0.00836961903f, 0.00139514916f);
  return bpc_fma(r * r, q, r);
}
BPC_INLINE double bpc_expm1_core(double r) {
  const double q =
      bpc_poly(r, 0x1p-1, 0x1.555555555555cp-3, 0x1.555555555555ep-5, 0x1.111111110eb5ep-7,
               0x1.6c16c16c1356cp-10, 0x1.a01a01b3db53ep-13, 0x1.a01a01b458a9ap-16,
               0x1.71ddef4417d14p-19, 0x1.27e4bf30bfe8bp-22, 0x1.af6d572d94728p-26,
               0x1.1f9de8a73f4acp-29);
  return bpc_fma(r * r, q, r);
}

BPC_INLINE float bpc_exp(float x) {
  const bpc_exp_parts_f32 p = bpc_exp_reduce(x);
  const float y = bpc_from_bits(bpc_bits(1.0f + bpc_expm1_core(p.r)) + (bpc_bits(p.shifted) << 23));
  const float low = x >= -87.3365402f ? y : 0.0f;      // below: under 2^-126
  return x <= 88.7228394f ? low : x + BPC_INF_F32;     // above: infinite; NaN stays NaN
}
// exp(high + low), where low is a small correction.
BPC_INLINE double bpc_exp_sum(double high, double low) {
  const bpc_exp_parts_f64 p = bpc_exp_reduce(high);
  const double m = 1.0 + bpc_expm1_core(p.r + low);
  const double y = bpc_from_bits(bpc_bits(m) + (bpc_bits(p.shifted) << 52));
  const double bounded = high >= -708.39641853226408 ? y : 0.0;
  return high <= 709.78271289338397 ? bounded : high + BPC_INF_F64;
}
BPC_INLINE double bpc_exp(double x) { return bpc_exp_sum(x, 0.0); }

// exp(x) - 1. 2^n is halved and the result doubled, so that n = 128 does not overflow early.
BPC_INLINE float bpc_expm1(float x) {
  const bpc_exp_parts_f32 p = bpc_exp_reduce(x);
  const float half = bpc_from_bits(0x3f000000u + (bpc_bits(p.shifted) << 23));
  const float y = 2.0f * bpc_fma(half, bpc_expm1_core(p.r), half - 0.5f);
  const float low = x >= -17.5f ? y : -1.0f;
  const float bounded = x <= 88.7228394f ? low : x + BPC_INF_F32;
  return bpc_abs(x) < 0x1p-25f ? x : bounded;
}
BPC_INLINE double bpc_expm1(double x) {
  const bpc_exp_parts_f64 p = bpc_exp_reduce(x);
  const double half = bpc_from_bits((uint64_t(0x3fe) << 52) + (bpc_bits(p.shifted) << 52));
  const double y = 2.0 * bpc_fma(half, bpc_expm1_core(p.r), half - 0.5);
  const double low = x >= -38.0 ? y : -1.0;
  const double bounded = x <= 709.78271289338397 ? low : x + BPC_INF_F64;
  return bpc_abs(x) < 0x1p-54 ? x : bounded;
}

// ---- log -------------------------------------------------------------------------------------

// x = 2^e (1 + f) with 1 + f in [2/3, 4/3); x positive and normal.
struct bpc_log_parts_f32 {
  float e, f;
};
struct bpc_log_parts_f64 {
  double e, f;
};
BPC_INLINE bpc_log_parts_f32 bpc_log_split(float x) {
  const uint32_t u = bpc_bits(x);
  const int32_t e = int32_t(u - 0x3f2aaaabu) >> 23;
  return {float(e), bpc_from_bits(u - (uint32_t(e) << 23)) - 1.0f};
}
BPC_INLINE bpc_log_parts_f64 bpc_log_split(double x) {
  // The exponent is shifted up by 1023 to stay unsigned, then becomes a double by the 2^52 trick:
  // AVX2 has neither an arithmetic 64-bit shift nor a conversion from int64.
  const uint64_t u = bpc_bits(x), one = uint64_t(0x3ff) << 52;
  const uint64_t biased = (u - 0x3fe5555555555555u + one) >> 52;
  const double e = bpc_from_bits(biased | (uint64_t(0x433) << 52)) - (0x1p52 + 1023.0);
  return {e, bpc_from_bits(u - (biased << 52) + one) - 1.0};
}

// e ln 2 + log(1 + f).
BPC_INLINE float bpc_log_core(float e, float f) {
  const float f2 = f * f;
  const float h = bpc_poly(f, 0.333333343f, -0.249998197f, 0.199996024f, -0.166795924f,
                           0.143042758f, -0.121955939f, 0.10756427f, -0.128458217f, 0.119983904f);
  const float tail = bpc_fma(f2 * f, h, -0.5f * f2);
  return bpc_fma(e, 0.693147182f, bpc_fma(e, -1.90465421e-9f, tail) + f);
}
BPC_INLINE double bpc_log_core(double e, double f) {
  const double s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
  const double r = z * 2.0 *
      bpc_poly(z, 0x1.5555555555555p-2, 0x1.9999999999909p-3, 0x1.249249249e614p-3,
               0x1.c71c71b73c889p-4, 0x1.745d1d28f0785p-4, 0x1.3b12605184e8cp-4,
               0x1.113f4d8e0a67dp-4, 0x1.da4a0866a7c53p-5, 0x1.02e8919207e1cp-4);
  const double tail = half - bpc_fma(s, half + r, e * 1.90821492927058770002e-10);
  return bpc_fma(e, 0x1.62e42feep-1, f - tail);
}

BPC_INLINE float bpc_log(float x) {
  const bpc_log_parts_f32 p = bpc_log_split(x);
  const float y = bpc_log_core(p.e, p.f);
  const float normal = x <= 0x1.fffffep+127f ? y : x;  // infinity and NaN are returned
  const float positive = x < 0x1p-126f ? -BPC_INF_F32 : normal;
  return x <= -0x1p-126f ? BPC_NAN_F32 : positive;
}
BPC_INLINE double bpc_log(double x) {
  const bpc_log_parts_f64 p = bpc_log_split(x);
  const double y = bpc_log_core(p.e, p.f);
  const double normal = x <= 0x1.fffffffffffffp+1023 ? y : x;
  const double positive = x < 0x1p-1022 ? -BPC_INF_F64 : normal;
  return x <= -0x1p-1022 ? BPC_NAN_F64 : positive;
}

// log(1 + x). With 2^e near 1 + x, f = (1 + x) 2^-e - 1 costs one rounding and is exactly x for
// small x. From 2^24 (2^53) on, 1 + x is x.
BPC_INLINE float bpc_log1p(float x) {
  const bpc_log_parts_f32 p = bpc_log_split(1.0f + x);
  const float scale = bpc_from_bits(0x3f800000u - (uint32_t(int32_t(p.e)) << 23));
  const float f = x < 0x1p24f ? bpc_fma(x, scale, scale - 1.0f) : p.f;
  const float y = bpc_log_core(p.e, f);
  const float normal = x <= 0x1.fffffep+127f ? y : x;
  const float inside = x > -1.0f ? normal : x == -1.0f ? -BPC_INF_F32 : x != x ? x : BPC_NAN_F32;
  return bpc_abs(x) < 0x1p-25f ? x : inside;
}
BPC_INLINE double bpc_log1p(double x) {
  const bpc_log_parts_f64 p = bpc_log_split(1.0 + x);
  const uint64_t e = bpc_bits(p.e + 6755399441055744.0) << 52;
  const double scale = bpc_from_bits((uint64_t(0x3ff) << 52) - e);
  const double f = x < 0x1p53 ? bpc_fma(x, scale, scale - 1.0) : p.f;
  const double y = bpc_log_core(p.e, f);
  const double normal = x <= 0x1.fffffffffffffp+1023 ? y : x;
  const double inside = x > -1.0 ? normal : x == -1.0 ? -BPC_INF_F64 : x != x ? x : BPC_NAN_F64;
  return bpc_abs(x) < 0x1p-54 ? x : inside;
}

// ---- tanh, sigmoid, softplus -----------------------------------------------------------------

// Near zero an odd polynomial, elsewhere 1 - 2 / (exp(2|x|) + 1).
BPC_INLINE float bpc_tanh(float x) {
  const float a = bpc_abs(x), z = x * x;
  const float q = bpc_poly(z, -0.333333313f, 0.133332089f, -0.0539471619f, 0.0217027478f,
                           -0.00818215311f, 0.00214707386f);
  const float small = bpc_fma(a * z, q, a);
  const float large = 1.0f - 2.0f / (bpc_exp(a + a) + 1.0f);
  return bpc_copysign(a < 0.625f ? small : large, x);
}
BPC_INLINE double bpc_tanh(double x) {
  const double a = bpc_abs(x), z = x * x;
  const double q = bpc_poly(z, -0x1.5555555555555p-2, 0x1.11111111110d4p-3, -0x1.ba1ba1ba17599p-5,
                            0x1.664f48818c5a4p-6, -0x1.226e352b0eec8p-7, 0x1.d6d3c5df69b99p-9,
                            -0x1.7da297b7312a2p-10, 0x1.354dc5d8f1fefp-11, -0x1.f4beeb16c9d14p-13,
                            0x1.91a48742d10ddp-14, -0x1.3357001070f12p-15, 0x1.8c204fb460b08p-17,
                            -0x1.317cafe495578p-19);
  const double small = bpc_fma(a * z, q, a);
  const double large = 1.0 - 2.0 / (bpc_exp(a + a) + 1.0);
  return bpc_copysign(a < 0.625 ? small : large, x);
}

// For very negative x exp(-x) is infinite and the quotient 0, which is right under flush-to-zero.
template <class T> BPC_INLINE T bpc_sigmoid(T x) { return T(1) / (T(1) + bpc_exp(-x)); }

// log(1 + exp(x)) without overflow: max(x, 0) + log(1 + t) with t = exp(-|x|) <= 1, so that the
// scale 2^e of log1p is 1 or 2.
template <class T> BPC_INLINE T bpc_softplus(T x) {
  const T t = bpc_exp(-bpc_abs(x));
  const bool upper = t > T(1) / T(3);
  const T f = upper ? bpc_fma(t, T(0.5), T(-0.5)) : t;
  return bpc_max(x, T(0)) + bpc_log_core(upper ? T(1) : T(0), f);
}

// ---- erf -------------------------------------------------------------------------------------

// Near zero x (1 + P(x^2)); elsewhere 1 - exp(Q(|x|)) with Q near log(erfc).
BPC_INLINE float bpc_erf(float x) {
  const float a = bpc_abs(x), z = x * x;
  const float p = bpc_poly(z, 0.128379166f, -0.376126349f, 0.112836957f, -0.0268593915f,
                           0.00520101609f, -0.000814252649f, 8.36936597e-05f);
  const float t = a < 4.0f ? a : 4.0f;
  const float q = bpc_poly(t, -0.000191157f, -1.12769306f, -0.637154996f, -0.103953779f,
                           0.0222368445f, -0.00304553215f, 0.00019615746f);
  const float small = bpc_fma(a, p, a);
  const float large = a == a ? 1.0f - bpc_exp(q) : a;
  return bpc_copysign(a < 0.92f ? small : large, x);
}
BPC_INLINE double bpc_erf(double x) {
  const double a = bpc_abs(x), z = x * x;
  const double p = bpc_poly(z, 0x1.06eba8214db69p-3, -0x1.812746b0379e6p-2, 0x1.ce2f21a042b1ep-4,
                            -0x1.b82ce312848f3p-6, 0x1.565bcd0dae821p-8, -0x1.c02db3d89d6d1p-11,
                            0x1.f9a32197ba02ep-14, -0x1.f4d1de7f3d479p-17, 0x1.b9dee806cf960p-20,
                            -0x1.5f1ce34d34bcfp-23, 0x1.f7a07a63eecd7p-27, -0x1.385f650a0a1d0p-30,
                            0x1.055a49ac14523p-34);
  const double t = a < 5.95 ? a : 5.95;
  const double q = bpc_poly(t, -0x1.8c13bcb073f48p-23, -0x1.20dd556342935p+0, -0x1.45f432a0220abp-1,
                            -0x1.a4d9a824f5696p-4, 0x1.388e7fa429474p-6, 0x1.27f4cb0e8d184p-12,
                            -0x1.d03e02ad7e992p-10, 0x1.5109a6f9b4a6fp-11, -0x1.819592a654c2dp-15,
                            -0x1.24890b7918e87p-14, 0x1.778ad99edf5a8p-15, -0x1.137f696378bf7p-16,
                            0x1.20add4c4ba14ap-18, -0x1.c5bf474770693p-21, 0x1.0c10d07d958b8p-23,
                            -0x1.d09c4ff818481p-27, 0x1.178f344420015p-30, -0x1.a1f5ee92beb05p-35,
                            0x1.247759b281c14p-40);
  const double small = bpc_fma(a, p, a);
  const double large = a == a ? 1.0 - bpc_exp(q) : a;
  return bpc_copysign(a < 1.0 ? small : large, x);
}

// ---- sin, cos --------------------------------------------------------------------------------

// x = n pi / 2 + r, |r| <= pi / 4; `quadrant` is n modulo 4 in its low bits. The reduction runs
// in f64 for both types: f32 is right up to 1e9, f64 up to 1e5 within the stated error.
struct bpc_turn {
  double r;
  uint32_t quadrant;
};
BPC_INLINE bpc_turn bpc_quarter_turns(double x) {
  const double magic = 6755399441055744.0;
  const double shifted = bpc_fma(x, 0x1.45f306dc9c883p-1, magic);
  const double n = shifted - magic;
  const double r = bpc_fma(n, -0x1.1a62633145c07p-54, bpc_fma(n, -0x1.921fb54442d18p+0, x));
  return {bpc_fma(n, 0x1.f1976b7ed8fbcp-110, r), uint32_t(bpc_bits(shifted))};
}
BPC_INLINE float bpc_sin_core(float r) {
  const float z = r * r;
  return bpc_fma(r * z, bpc_poly(z, -0.166666672f, 0.00833332911f, -0.000198392547f,
                                 2.71755266e-06f), r);
}
BPC_INLINE float bpc_cos_core(float r) {
  const float z = r * r, q = bpc_poly(z, 0.0416666456f, -0.00138873083f, 2.44314087e-05f);
  return bpc_fma(z, bpc_fma(z, q, -0.5f), 1.0f);
}
BPC_INLINE double bpc_sin_core(double r) {
  const double z = r * r;
  return bpc_fma(r * z, bpc_poly(z, -0x1.5555555555555p-3, 0x1.111111111110ap-7,
                                 -0x1.a01a01a0188adp-13, 0x1.71de3a530b037p-19,
                                 -0x1.ae64525b30be2p-26, 0x1.61206b7046df9p-33,
                                 -0x1.aa91a5603a21bp-41), r);
}
BPC_INLINE double bpc_cos_core(double r) {
  const double z = r * r;
  const double q = bpc_poly(z, 0x1.5555555555555p-5, -0x1.6c16c16c16c0fp-10, 0x1.a01a01a018c00p-16,
                            -0x1.27e4fb75dc888p-22, 0x1.1eed8c7e82a92p-29, -0x1.93930e0590fb3p-37,
                            0x1.aab29873caab8p-45);
  return bpc_fma(z, bpc_fma(z, q, -0.5), 1.0);
}
template <class T> BPC_INLINE T bpc_sine_of_turn(bpc_turn t, uint32_t quadrant) {
  const T s = bpc_sin_core(T(t.r)), c = bpc_cos_core(T(t.r));
  const T y = (quadrant & 1) != 0 ? c : s;
  return (quadrant & 2) != 0 ? -y : y;
}
template <class T> BPC_INLINE T bpc_sin(T x) {
  const bpc_turn t = bpc_quarter_turns(double(x));
  const T y = bpc_sine_of_turn<T>(t, t.quadrant);
  return x == T(0) ? x : y;  // keeps -0
}
template <class T> BPC_INLINE T bpc_cos(T x) {
  const bpc_turn t = bpc_quarter_turns(double(x));
  return bpc_sine_of_turn<T>(t, t.quadrant + 1);
}

// ---- pow -------------------------------------------------------------------------------------

// x^y given magnitude = |x|^y for ordinary arguments: the special cases of C's pow, by selects.
template <class T> BPC_INLINE T bpc_pow_cases(T x, T y, T magnitude, T least, T infinity, T nan) {
  const T a = bpc_abs(x);
  const bool integer = bpc_floor(y) == y;
  const bool odd = integer & (bpc_floor(y * T(0.5)) * T(2) != y);
  T r = a < least ? (y > T(0) ? T(0) : infinity) : magnitude;
  r = a == infinity ? (y > T(0) ? infinity : T(0)) : r;
  r = a == T(1) ? T(1) : r;
  r = odd ? bpc_copysign(r, x) : r;
  r = ((x <= -least) & !integer & (a < infinity)) ? nan : r;
  r = ((x != x) | (y != y)) ? x + y : r;
  return ((x == T(1)) | (y == T(0))) ? T(1) : r;
}

BPC_INLINE float bpc_pow(float x, float y) {
  const double product = double(y) * bpc_log(double(bpc_abs(x)));
  return bpc_pow_cases(x, y, float(bpc_exp(product)), 0x1p-126f, BPC_INF_F32, BPC_NAN_F32);
}

// log|x| as a sum of two doubles (relative error near 2^-66), so that y log|x| may be large.
BPC_INLINE double bpc_pow(double x, double y) {
  const bpc_log_parts_f64 p = bpc_log_split(bpc_abs(x));
  // s = f / (2 + f) = s + s_low, and its square and cube, each with a correction.
  const double d = 2.0 + p.f, d_low = p.f - (d - 2.0), s = p.f / d;
  const double s_low = bpc_fma(-s, d_low, bpc_fma(-s, d, p.f)) / d;
  const double z = s * s, z_low = bpc_fma(2.0 * s, s_low, bpc_fma(s, s, -z));
  const double c = z * s, c_low = bpc_fma(z, s_low, bpc_fma(z_low, s, bpc_fma(z, s, -c)));
  // atanh(s) = s + s^3 / 3 + s^5 R(s^2)
  const double third = 0x1.5555555555555p-2, third_low = 0x1.5555555555555p-56;
  const double t = c * third;
  const double t_low = bpc_fma(c_low, third, bpc_fma(c, third_low, bpc_fma(c, third, -t)));
  const double rest = c * z *
      bpc_poly(z, 0x1.9999999999967p-3, 0x1.2492492498f50p-3, 0x1.c71c71bc4ab73p-4,
               0x1.745d1bd291366p-4, 0x1.3b129606beea6p-4, 0x1.113a5ab355602p-4,
               0x1.dac8b8eac615bp-5, 0x1.0194fcdccd419p-4);
  const double a = s + t, a_low = t - (a - s) + (t_low + rest + s_low);
  // e ln 2 (its high part is exact) + 2 atanh(s), normalised to a sum of two doubles
  const double e = p.e * 0x1.62e42feep-1, sum = e + 2.0 * a;
  const double less = 2.0 * a - (sum - e) + bpc_fma(2.0, a_low, p.e * 1.90821492927058770002e-10);
  const double high = sum + less, low = less - (high - sum);
  const double product = y * high;
  const double correction = bpc_fma(y, low, bpc_fma(y, high, -product));
  const double magnitude = bpc_exp_sum(product, bpc_abs(product) < 1e3 ? correction : 0.0);
  return bpc_pow_cases(x, y, magnitude, 0x1p-1022, BPC_INF_F64, BPC_NAN_F64);
}

// ---- random numbers --------------------------------------------------------------------------

// The Philox4x32-10 block (Salmon et al. 2011) of a counter and a key.
struct bpc_philox_words {
  uint32_t word[4];
};
BPC_INLINE bpc_philox_words bpc_philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                                       uint32_t k0, uint32_t k1) {
  BPC_UNROLL
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
    c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
    c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c1 = uint32_t(p1);
    c3 = uint32_t(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}
BPC_INLINE float bpc_unit(uint32_t word) { return float(int32_t(word >> 8)) * 0x1p-24f; }

// Uniform in [0, 1), a multiple of 2^-24. Key: the seed; counter: element / 4, window, stream;
// element modulo 4 chooses the word.
BPC_INLINE float bpc_uniform(int64_t seed, int64_t window, int64_t stream, int64_t element) {
  const uint64_t key = uint64_t(seed), block = uint64_t(element) >> 2;
  const bpc_philox_words w =
      bpc_philox(uint32_t(block), uint32_t(block >> 32), uint32_t(window), uint32_t(stream),
                 uint32_t(key), uint32_t(key >> 32));
  const uint32_t low = (element & 1) != 0 ? w.word[1] : w.word[0];
  const uint32_t high = (element & 1) != 0 ? w.word[3] : w.word[2];
  return bpc_unit((element & 2) != 0 ? high : low);
}
