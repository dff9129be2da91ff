"""What Muon takes: the matrices that it changes, and its operations, from the config of a model.

Without TensorFlow, which a machine that runs the model on JAX may lack.
"""

from txl_tf.config import LSTM, ModelConfig

# Polynomials a s + b s^3 + c s^5 of the singular values s. Of all of this degree, each moves what
# the one before leaves nearest to 1: the first [.005, 1], the last to within .098 of 1. Each allows
# for singular values that are 2 % too large, beyond which it grows steeply.
COEFFICIENTS = (
    (8.1400, -23.0368, 16.3967),
    (3.8518, -2.7640, 0.5084),
    (3.1586, -2.2837, 0.4577),
    (2.1981, -1.5352, 0.3822),
)


def list_matrices(model: ModelConfig) -> list[tuple[int, int]]:
    """Returns the rows and columns of each matrix that Muon changes, joint ones one by one."""
    width, d_heads = model.d_model, model.n_head * model.d_head
    if model.model_type == LSTM:  # input and recurrent kernel, four gates each
        return [(width, width)] * 8 * model.n_layer
    n_projections = 4 if model.encoding == "relative" else 3  # q, k, v, r
    of_layer = [(width, d_heads)] * n_projections + [(d_heads, width)]
    of_layer += [(width, model.d_inner), (model.d_inner, width)]
    return of_layer * model.n_layer


def count_matrix_parameters(model: ModelConfig) -> int:
    """Returns the number of parameters that Muon changes; they have no second moment."""
    return sum(rows * columns for rows, columns in list_matrices(model))


def count_orthogonalization_flops(model: ModelConfig) -> float:
    """Returns the floating-point operations of the matrix products of `orthogonalize` in a step."""
    flops = 0.0
    for matrix in list_matrices(model):
        short, long = sorted(matrix)
        flops += len(COEFFICIENTS) * (2 * 2 * short * short * long + 2 * short**3)
    return flops
