/* Fused bfloat16 kernels for training on a CPU: RMS norm, SwiGLU, rotary layout changes, masked softmax.

   Eager PyTorch spends more time between the matmuls than in them: each elementwise operation reads and writes memory
   and converts types on the way. A kernel here reads its input once, computes in float32 and rounds once. The matmuls
   themselves stay in torch.bmm. Arrays are dense and row-major; every loop over rows runs in parallel with a static
   schedule, so that results are the same from run to run for a given number of threads. */

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;
/* Two neighbours at once: the compiler vectorises this better than steps of two. The first lies in the low half. */
typedef uint32_t __attribute__((may_alias, aligned(2))) pair;

enum kind { PREFIX = 0, PAGE = 1, QUESTION = 2 }; /* and 3, padding, that no one sees */

static const float LOG2_E = 1.44269504f;
static const float MASKED = -1e30f; /* finite: infinity minus infinity would make NaN of a row */

static inline float bits_to_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint32_t float_to_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
static inline float widen(bf16 x) { return bits_to_float((uint32_t)x << 16); }

/* Round to the nearest bfloat16, ties to even. NaN stays NaN: arithmetic leaves its low bits zero. */
static inline bf16 narrow(float x) {
    uint32_t bits = float_to_bits(x);
    return (bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* 2**x to about 3e-6, 0 below 2**-125 and infinity above 2**126; no call, no branch, so that loops vectorise.
   Adding 1.5 * 2**23 rounds x to an integer that lands in the low mantissa bits, ready to be added to an exponent. */
static inline float power_of_two(float x) {
    float shifted = x + 12582912.f;
    float rest = x - (shifted - 12582912.f);
    float power = 0.05550411f + rest * (0.00961813f + rest * 0.00133336f);
    power = 1.f + rest * (0.69314718f + rest * (0.24022651f + rest * power));
    power = bits_to_float(float_to_bits(power) + (float_to_bits(shifted) << 23));
    power = x < -125.f ? 0.f : power;
    return x > 126.f ? INFINITY : power;
}

static inline float sigmoid(float x) { return 1.f / (1.f + power_of_two(-LOG2_E * x)); }

/* out = residual + x * rsqrt(mean(x^2) + eps) * weight for each row; residual may be NULL. Keeps the inverse rms. */
void rms_norm_forward(const bf16 *restrict x, const bf16 *restrict residual, const float *restrict weight, float eps,
                      bf16 *restrict out, float *restrict inverse_rms, long rows, long dim) {
#pragma omp parallel for schedule(static)
    for (long row = 0; row < rows; row++) {
        const bf16 *restrict in = x + row * dim;
        float square = 0.f;
#pragma omp simd reduction(+ : square)
        for (long i = 0; i < dim; i++) square += widen(in[i]) * widen(in[i]);
        float inverse = inverse_rms[row] = 1.f / sqrtf(square / (float)dim + eps);
        for (long i = 0, at = row * dim; i < dim; i++, at++)
            out[at] = narrow((residual ? widen(residual[at]) : 0.f) + widen(in[i]) * inverse * weight[i]);
    }
}

/* Gradient for x, and for weight in parts [threads, dim], zero before: each thread sums its own rows. */
void rms_norm_backward(const bf16 *restrict grad, const bf16 *restrict x, const float *restrict weight,
                       const float *restrict inverse_rms, bf16 *restrict grad_x, float *restrict parts,
                       long rows, long dim, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long row = 0; row < rows; row++) {
        const bf16 *restrict in = x + row * dim, *restrict from = grad + row * dim;
        bf16 *restrict to = grad_x + row * dim;
        float *restrict sums = parts + omp_get_thread_num() * dim;
        float inverse = inverse_rms[row], dot = 0.f;
#pragma omp simd reduction(+ : dot)
        for (long i = 0; i < dim; i++) {
            float product = widen(from[i]) * widen(in[i]);
            dot += product * weight[i];
            sums[i] += product * inverse;
        }
        float along = dot / (float)dim * inverse * inverse;
        for (long i = 0; i < dim; i++) to[i] = narrow(inverse * (widen(from[i]) * weight[i] - widen(in[i]) * along));
    }
}

/* out [rows, dim] = silu(gate) * up, where a row of gate_up is gate [dim] then up [dim]. */
void swiglu_forward(const bf16 *restrict gate_up, bf16 *restrict out, long rows, long dim) {
#pragma omp parallel for schedule(static)
    for (long row = 0; row < rows; row++) {
        const bf16 *restrict gate = gate_up + row * 2 * dim, *restrict up = gate + dim;
        bf16 *restrict to = out + row * dim;
        for (long i = 0; i < dim; i++) to[i] = narrow(widen(gate[i]) * sigmoid(widen(gate[i])) * widen(up[i]));
    }
}

/* Gradients for gate and up, side by side as in gate_up. */
void swiglu_backward(const bf16 *restrict grad, const bf16 *restrict gate_up, bf16 *restrict grad_gate_up,
                     long rows, long dim) {
#pragma omp parallel for schedule(static)
    for (long row = 0; row < rows; row++) {
        const bf16 *restrict gate = gate_up + row * 2 * dim, *restrict up = gate + dim;
        bf16 *restrict to_gate = grad_gate_up + row * 2 * dim, *restrict to_up = to_gate + dim;
        for (long i = 0; i < dim; i++) {
            float g = widen(gate[i]), s = sigmoid(g), d = widen(grad[row * dim + i]);
            to_gate[i] = narrow(d * widen(up[i]) * s * (1.f + g * (1.f - s)));
            to_up[i] = narrow(d * g * s);
        }
    }
}

/* Rotate `half` pairs of one head's vector by the angles of its position; direction -1 turns back, the gradient. */
static inline void rotate(const bf16 *restrict from, bf16 *restrict to, const float *restrict cosine,
                          const float *restrict sine, long dim, long half, int interleaved, float direction) {
    if (interleaved) {
        const pair *restrict from_pairs = (const pair *)from;
        pair *restrict to_pairs = (pair *)to;
        for (long i = 0; i < half; i++) {
            float a = widen((bf16)from_pairs[i]), b = widen((bf16)(from_pairs[i] >> 16)), s = direction * sine[i];
            to_pairs[i] = narrow(a * cosine[i] - b * s) | (pair)narrow(b * cosine[i] + a * s) << 16;
        }
    } else {
        for (long i = 0; i < half; i++) {
            float a = widen(from[i]), b = widen(from[i + half]), s = direction * sine[i];
            to[i] = narrow(a * cosine[i] - b * s);
            to[i + half] = narrow(b * cosine[i] + a * s);
        }
    }
    memcpy(to + 2 * half, from + 2 * half, (dim - 2 * half) * sizeof(bf16));
}

/* rows [batch, length, stride], of which the first heads * dim are taken, -> heads, rotated; or with `back` heads ->
   rows, rotated back. Heads lie in blocks of `block` positions, each [batch, heads, positions, dim]; with one block
   that is the usual layout. cosine and sine [length, half] advance by table_stride per sequence (0: shared). */
void move_heads(bf16 *restrict rows, bf16 *restrict dense, const float *restrict cosine, const float *restrict sine,
                long batch, long length, long stride, long heads, long dim, long block, long half, long table_stride,
                int interleaved, int back) {
#pragma omp parallel for collapse(2) schedule(static)
    for (long sequence = 0; sequence < batch; sequence++)
        for (long position = 0; position < length; position++) {
            long start = position / block * block, table = sequence * table_stride + position * half;
            long size = length - start < block ? length - start : block;
            for (long head = 0; head < heads; head++) {
                bf16 *row = rows + (sequence * length + position) * stride + head * dim;
                bf16 *own = dense + (start * batch * heads + (sequence * heads + head) * size + position - start) * dim;
                rotate(back ? own : row, back ? row : own, cosine + table, sine + table, dim, half, interleaved,
                       back ? -1.f : 1.f);
            }
        }
}

/* bias[j] = 0 where the query may see key j, MASKED elsewhere, for the keys up to the query itself. groups holds
   (own, kind) pairs. A query sees every key of a kind up to `below`, and keys of one more kind in its own group. */
static void visibility(const int32_t *restrict groups, long query, float *restrict bias) {
    int32_t own = groups[2 * query], kind = groups[2 * query + 1];
    int32_t below = kind == QUESTION || (kind == PAGE && own >= 0) ? PAGE : PREFIX;
    int32_t same = kind == PAGE || kind == QUESTION ? kind : PREFIX;
    for (long key = 0; key < query; key++) {
        int32_t of = groups[2 * key], what = groups[2 * key + 1];
        bias[key] = (what <= below) | ((what == same) & (of == own)) ? 0.f : MASKED;
    }
    bias[query] = 0.f;
}

/* Softmax of scale * scores + bias over the first `seen` keys, in place; the other keys get probability 0. */
static inline void softmax_row(bf16 *restrict scores, const float *restrict bias, float *restrict work, float scale,
                               long seen, long keys) {
    float top = MASKED, sum = 0.f;
    scale *= LOG2_E;
#pragma omp simd reduction(max : top)
    for (long key = 0; key < seen; key++) {
        work[key] = widen(scores[key]) * scale + bias[key];
        top = work[key] > top ? work[key] : top;
    }
#pragma omp simd reduction(+ : sum)
    for (long key = 0; key < seen; key++) {
        work[key] = power_of_two(work[key] - top);
        sum += work[key];
    }
    sum = 1.f / sum;
    for (long key = 0; key < seen; key++) scores[key] = narrow(work[key] * sum);
    memset(scores + seen, 0, (keys - seen) * sizeof(bf16));
}

/* scores [batch, heads, queries, keys] -> probabilities, in place. groups NULL: every key is seen. Otherwise the
   queries are positions start .. start + queries, and groups advances by group_stride per sequence (0: shared). */
void softmax_forward(bf16 *restrict scores, const int32_t *restrict groups, float scale, long batch, long heads,
                     long queries, long keys, long start, long group_stride) {
#pragma omp parallel
    {
        float bias[keys], work[keys]; /* on the stack: a few kilobytes per thread */
        memset(bias, 0, sizeof bias);
#pragma omp for collapse(2) schedule(static)
        for (long sequence = 0; sequence < batch; sequence++)
            for (long query = 0; query < queries; query++) {
                long seen = groups ? start + query + 1 : keys;
                if (groups) visibility(groups + sequence * group_stride, start + query, bias);
                for (long row = sequence * heads * queries + query, head = 0; head < heads; head++, row += queries)
                    softmax_row(scores + row * keys, bias, work, scale, seen, keys);
            }
    }
}

/* grad (by probabilities) -> gradient by scores, in place: scale * p * (grad - sum(grad * p)), over [rows, keys]. */
void softmax_backward(bf16 *restrict grad, const bf16 *restrict probabilities, float scale, long rows, long keys) {
#pragma omp parallel for schedule(static)
    for (long row = 0; row < rows; row++) {
        bf16 *restrict d = grad + row * keys;
        const bf16 *restrict p = probabilities + row * keys;
        float dot = 0.f;
#pragma omp simd reduction(+ : dot)
        for (long key = 0; key < keys; key++) dot += widen(d[key]) * widen(p[key]);
        for (long key = 0; key < keys; key++) d[key] = narrow(scale * widen(p[key]) * (widen(d[key]) - dot));
    }
}

/* total [groups, length, dim] += part [groups, taken, dim]: gradients of keys collect over blocks of queries. */
void accumulate(float *restrict total, const bf16 *restrict part, long groups, long length, long taken, long dim) {
#pragma omp parallel for schedule(static)
    for (long group = 0; group < groups; group++) {
        float *restrict to = total + group * length * dim;
        for (long i = 0; i < taken * dim; i++) to[i] += widen(part[group * taken * dim + i]);
    }
}
