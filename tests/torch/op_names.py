"""Ops of torch's database that test_ops.py treats apart."""

# No row in Tessera: NotImplementedError, with the name of the op.
NO_ROW = frozenset("""
_segment_reduce.lengths _segment_reduce.offsets _upsample_bilinear2d_aa as_strided_scatter chalf cholesky_inverse
cholesky_solve combinations frexp geqrf hash_tensor histc histogram histogramdd i0 igamma igammac index_fill
index_reduce.amax index_reduce.amin index_reduce.mean index_reduce.prod linalg.eig linalg.eigvals
linalg.householder_product linalg.ldl_factor linalg.ldl_factor_ex linalg.ldl_solve linalg.lstsq
linalg.lstsq.grad_oriented linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.lu_solve linalg.matrix_sqrth
linalg.pinv linalg.pinv.hermitian linalg.pinv.singular linalg.polar logcumsumexp lu lu_solve lu_unpack matrix_exp mode
nanmedian nn.functional.linear_cross_entropy.chunked nn.functional.linear_cross_entropy.chunked_none
nn.functional.pdist nonzero_static ormqr pinverse polygamma.polygamma_n_0 polygamma.polygamma_n_1
polygamma.polygamma_n_2 polygamma.polygamma_n_3 polygamma.polygamma_n_4 randint_like resize_as_ scatter_reduce.prod
sgn triangular_solve unique_consecutive
""".split())

# Random numbers, memory that nobody wrote, strides of a larger storage, and arguments that say `cpu`: not to be compared.
# linalg.eigh's vectors have any sign (test_matrices.py).
# Some have a row for some of their arguments.
OTHER_MEANING = frozenset("""
_batch_norm_with_update _native_batch_norm_legit argwhere as_strided as_strided.partial_views as_strided_copy
bernoulli cauchy empty empty_like empty_permuted empty_strided exponential geometric log_normal multinomial
native_batch_norm native_dropout_backward new_empty new_empty_strided nn.functional.alpha_dropout
nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d nn.functional.feature_alpha_dropout.with_train
nn.functional.feature_alpha_dropout.without_train nn.functional.multi_head_attention_forward
nn.functional.rrelu nn.functional.scaled_dot_product_attention nonzero normal normal.in_place normal.number_mean rand_like randint
randint_like randn randn_like tensor_split to uniform
linspace.tensor_overload nn.functional.unfold repeat_interleave
linalg.eigh pca_lowrank svd_lowrank
""".split())
