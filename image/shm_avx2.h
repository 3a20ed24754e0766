// In the place of DeepSpeed's csrc/cpu/comm/x86_64/shm.h, whose functions are compiled for AVX-512 by attributes,
// whatever -march says. The same macros for shm.cpp with AVX2 and F16C, which x86-64-v3 has; sums stay in fp32.

#include <immintrin.h>

#pragma GCC target("avx2,f16c")  // DeepSpeed compiles this op without -march

static int vector_length_in_bytes = 32;  // 16 of bf16 or fp16, 8 of fp32

struct float16x { __m256 low, high; };  // 16 floats in two registers

static inline __m128i low_half(__m256i x) { return _mm256_castsi256_si128(x); }
static inline __m128i high_half(__m256i x) { return _mm256_extracti128_si256(x, 1); }

static inline float16x add(float16x a, float16x b)
{
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}

static inline __m256 widen_bf16(__m128i x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

// Each in the low 16 bits of its lane: to the nearest, ties to even; NaN is 0xffff as in DeepSpeed.
static inline __m256i narrow_bf16(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i is_number = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_ORD_Q));
    return _mm256_blendv_epi8(_mm256_set1_epi32(0xffff), _mm256_srli_epi32(rounded, 16), is_number);
}

static inline float16x bf16_to_floats(__m256i x) { return {widen_bf16(low_half(x)), widen_bf16(high_half(x))}; }

static inline __m256i floats_to_bf16(float16x x)
{
    // packus works within halves of 128 bits: the order comes out as 0 2 1 3.
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(narrow_bf16(x.low), narrow_bf16(x.high)), 0xd8);
}

static inline float16x fp16_to_floats(__m256i x)
{
    return {_mm256_cvtph_ps(low_half(x)), _mm256_cvtph_ps(high_half(x))};
}

static inline __m256i floats_to_fp16(float16x x)
{
    return _mm256_set_m128i(_mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                            _mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

void reduce_bf16_buffers(int start_elements, int num_elements, char* to_buffer, char** buffers);
void reduce_fp16_buffers(int start_elements, int num_elements, char* to_buffer, char** buffers);
void reduce_fp32_buffers(int start_elements, int num_elements, char* to_buffer, char** buffers);
void parallel_memcpy(void* to, void* from, size_t n_bytes);

#define VLOAD_U8(X) _mm256_loadu_si256((__m256i*)(X))
#define VLOAD_U16(X) VLOAD_U8(X)
#define VLOAD_F16(X) VLOAD_U8(X)
#define VLOAD_F32(X) _mm256_loadu_ps((float*)(X))

#define VSTORE_U8(A, B) _mm256_storeu_si256((__m256i*)(A), B)
#define VSTORE_U16(A, B) VSTORE_U8(A, B)
#define VSTORE_F16(A, B) VSTORE_U8(A, B)
#define VSTORE_F32(A, B) _mm256_storeu_ps((float*)(A), B)

#define VADD_F32(A, B) _mm256_add_ps(A, B)
#define VADD_F32_2VL(A, B) add(A, B)

#define CVT_BF16_TO_FP32(X) bf16_to_floats(X)
#define CVT_FP16_TO_FP32(X) fp16_to_floats(X)
#define CVT_FP32_TO_BF16(X) floats_to_bf16(X)
#define CVT_FP32_TO_FP16(X) floats_to_fp16(X)
