// AdamW (Loshchilov and Hutter, 2019) as torch.optim.AdamW has it: weight and moments of type T, gradient of type G. New
// values may be in the places of the old. skipped, if not null, counts the steps that the loss scaler left out; a clip
// that is not positive leaves out this one.
template <class G>
DEVICE void adamw(T* w2, T* m2, T* v2, const T* w, const T* m, const T* v, const G* g, const float* clip, const float* lr, const int* steps,
	const float* skipped, i64 n, double beta1, double beta2, float eps, float weight_decay) {
	__shared__ float factors[3];
	float by = *clip;
	bool skip = skipped && !(by > 0);
	if (thread() == 0) {
		double step = (double)*steps + 1 - (skipped ? (double)*skipped : 0);
		factors[0] = (float)(1 - (double)*lr * (double)weight_decay);
		factors[1] = (float)((double)*lr / (double)(float)(1 - pow(beta1, step)));
		factors[2] = (float)(1 / sqrt((double)(float)(1 - pow(beta2, step))));
	}
	sync_block();
	float decay = factors[0], rate = factors[1], root = factors[2];
	float b1 = (float)beta1, b2 = (float)beta2, gain1 = (float)(1 - (double)b1), gain2 = (float)(1 - (double)b2);
	each_of_all<float>(n, true, [&](auto width, i64 i) { // four at a time, whatever the types
		constexpr int k = decltype(width)::value;
		Pack<k> x = load<k>(w + i), first = load<k>(m + i), second = load<k>(v + i), d = load<k>(g + i);
		if (!skip) {
			for (int j = 0; j < k; j++) {
				float grad = d[j] * by;
				first[j] = b1 * first[j] + gain1 * grad;
				second[j] = b2 * second[j] + gain2 * (grad * grad);
				x[j] = x[j] * decay - rate * first[j] / (sqrtf(second[j]) * root + eps);
			}
		}
		store(w2 + i, x);
		store(m2 + i, first);
		store(v2 + i, second);
	});
}
#define ADAMW(G) \
	(T* w2, T* m2, T* v2, const T* w, const T* m, const T* v, const G* g, const float* clip, const float* lr, const int* steps, \
		const float* skipped, i64 n, double beta1, double beta2, float eps, float weight_decay) { \
		adamw(w2, m2, v2, w, m, v, g, clip, lr, steps, skipped, n, beta1, beta2, eps, weight_decay); \
	}
KERNEL(adamw_f32, 256) ADAMW(float)
KERNEL(adamw_bf16, 256) ADAMW(bf16)
KERNEL(adamw_f16, 256) ADAMW(f16)
#undef ADAMW
