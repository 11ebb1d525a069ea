"""Ops of torch's database that test_ops.py treats apart."""

# No row in Tessera: NotImplementedError, with the name of the op.
NO_ROW = frozenset("""
_segment_reduce.lengths _segment_reduce.offsets chalf hash_tensor linalg.ldl_factor linalg.ldl_factor_ex
linalg.ldl_solve linalg.matrix_sqrth linalg.polar
""".split())

# Random numbers, memory that nobody wrote, strides of a larger storage, and arguments that say `cpu`: not to be compared.
# linalg.eigh's vectors have any sign (test_matrices.py).
# For matrix_exp torch's own numbers are in f32, up to 0.05 from the exponential where ours are up to 0.002 (test_matrices.py).
# Some have a row for some of their arguments.
OTHER_MEANING = frozenset("""
_batch_norm_with_update _native_batch_norm_legit argwhere as_strided as_strided.partial_views as_strided_copy
bernoulli cauchy empty empty_like empty_permuted empty_strided exponential geometric log_normal multinomial
native_batch_norm native_dropout_backward new_empty new_empty_strided nn.functional.alpha_dropout
nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d
nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d nn.functional.feature_alpha_dropout.with_train
nn.functional.feature_alpha_dropout.without_train nn.functional.multi_head_attention_forward
nn.functional.rrelu nn.functional.scaled_dot_product_attention nonzero normal normal.in_place normal.number_mean rand_like randint
randint_like randn randn_like tensor_split to uniform
linspace.tensor_overload nn.functional.unfold repeat_interleave
linalg.eigh matrix_exp pca_lowrank svd_lowrank
""".split())
