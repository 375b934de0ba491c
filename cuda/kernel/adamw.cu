// AdamW (Loshchilov and Hutter, 2019) as torch.optim.AdamW has it, of many tensors in one launch.
// Weights and moments are of type T, gradients of type G. If there is a place for it, a copy of the
// new weight in type G is stored too. New values may overwrite the old.
template <class G> struct Update {
	T *w2, *m2, *v2;
	const T *w, *m, *v;
	const G* g;
	G* copy;
	i64 n;
	float weight_decay;
	int first; // its first block; a block takes 16384 elements
};
template <class G> struct Updates { Update<G> of[48]; };

// skipped, if not null, counts the steps that the loss scaler skipped. A clip that is not positive
// skips this step.
template <class G>
DEVICE void adamw(const float* clip, const float* lr, const int* steps, const float* skipped, double beta1, double beta2, float eps, int count,
	const Updates<G>& all) {
	__shared__ float factors[3];
	int at = 0;
	while (at + 1 < count && all.of[at + 1].first <= block_x()) at++;
	const Update<G>& t = all.of[at];
	float by = *clip;
	bool skip = skipped && !(by > 0);
	if (thread() == 0) {
		double step = (double)*steps + 1 - (skipped ? (double)*skipped : 0);
		factors[0] = (float)(1 - (double)*lr * (double)t.weight_decay);
		factors[1] = (float)((double)*lr / (double)(float)(1 - pow(beta1, step)));
		factors[2] = (float)(1 / sqrt((double)(float)(1 - pow(beta2, step))));
	}
	sync_block();
	float decay = factors[0], rate = factors[1], root = factors[2];
	float b1 = (float)beta1, b2 = (float)beta2, gain1 = (float)(1 - beta1), gain2 = (float)(1 - beta2);
	i64 start = (i64)(block_x() - t.first) * 16384, left = t.n - start;
	each<float>(left < 16384 ? left : 16384, true, thread(), threads(), [&](auto width, i64 i) { // four at a time whatever the types
		constexpr int k = decltype(width)::value;
		i += start;
		Pack<k> x = load<k>(t.w + i), first = load<k>(t.m + i), second = load<k>(t.v + i), d = load<k>(t.g + i);
		if (!skip) {
			for (int j = 0; j < k; j++) {
				float grad = d[j] * by;
				first[j] = b1 * first[j] + gain1 * grad;
				second[j] = b2 * second[j] + gain2 * (grad * grad);
				x[j] = x[j] * decay - rate * first[j] / (sqrtf(second[j]) * root + eps);
			}
		}
		store(t.w2 + i, x);
		store(t.m2 + i, first);
		store(t.v2 + i, second);
		if (t.copy) store(t.copy + i, x);
	});
}
#define ADAMW(G) \
	(const float* clip, const float* lr, const int* steps, const float* skipped, double beta1, double beta2, float eps, int count, Updates<G> all) { \
		adamw<G>(clip, lr, steps, skipped, beta1, beta2, eps, count, all); \
	}
KERNEL(adamw_f32, 256) ADAMW(float)
KERNEL(adamw_bf16, 256) ADAMW(bf16)
KERNEL(adamw_f16, 256) ADAMW(f16)
#undef ADAMW
