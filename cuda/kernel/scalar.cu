// Ops on f32 scalars. Those without a parameter n run on a single thread.

KERNEL(square_root, 1)(float* y, const float* x) { *y = (float)sqrt((double)*x); }

KERNEL(clip_scale, 1)(float* y, const float* norm, double most) {
	double scale = most / ((double)*norm + 1e-6);
	*y = scale < 1 || scale != scale ? (float)scale : 1.0f;
}

// loss_scale is the update of torch.amp.GradScaler.
KERNEL(loss_scale, 1)(float* scale2, float* good2, float* skipped2, float* unscale, const float* scale, const float* good, const float* skipped,
	const float* norm, float growth, float backoff, float interval) {
	float s = *scale, n = *good, k = *skipped, u = 1 / s;
	if (!(*norm < INF && *norm > -INF)) {
		s *= backoff, n = 0, k += 1, u = 0;
	} else if (n + 1 == interval) {
		float most = s > 0x1p126f ? s : 0x1p126f;
		s *= growth, n = 0;
		if (s > most) s = most;
	} else {
		n += 1;
	}
	*scale2 = s, *good2 = n, *skipped2 = k, *unscale = u;
}

KERNEL(nll, 256)(float* out, const float* max, const float* sum, const float* pick, const int* targets, i64 n) {
	i64 r = (i64)block_x() * threads() + thread();
	if (r < n) out[r] = targets[r] < 0 ? 0 : max[r] + logf(sum[r]) - pick[r];
}
