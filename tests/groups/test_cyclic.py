import pytest
import torch

from equicolor.groups import cyclic_algorithm, cyclic_products, dense_algorithm

ORDERS = range(1, 25)
ALGORITHMS = [dense_algorithm, cyclic_algorithm]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n", ORDERS)
def test_tables_are_the_cyclic_correlation(algorithm, n):
    a, b, c = algorithm(n)
    # y[k] = sum_j x[k + j] w[j]: the tensor is 1 where i = k + j and 0 elsewhere.
    tensor = torch.einsum("pk,pi,pj->kij", c, a, b)
    k, i, j = torch.meshgrid(*[torch.arange(n)] * 3, indexing="ij")
    assert (tensor - (i == (k + j) % n).double()).abs().max() < 1e-14


@pytest.mark.parametrize("n", ORDERS)
def test_dense_needs_all_pairs(n):
    assert dense_algorithm(n).products == n * n


def test_cyclic_products_are_those_of_the_table():
    table = [1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17]
    assert [cyclic_algorithm(n).products for n in range(1, 13)] == table
    assert [cyclic_products(n) for n in range(1, 13)] == table


@pytest.mark.parametrize("n", ORDERS)
def test_product_count_is_the_size_of_the_tables(n):
    algorithm = cyclic_algorithm(n)
    assert algorithm.order == n
    assert {table.shape for table in algorithm} == {(cyclic_products(n), n)}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 12])
def test_correlate_matches_a_loop(algorithm, n):
    x, w = torch.randn(2, 4, n, dtype=torch.float64)
    expected = torch.stack([sum(x[:, (k + s) % n] * w[:, s] for s in range(n)) for k in range(n)])
    assert (algorithm(n).correlate(x, w) - expected.T).abs().max() < 1e-13


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_correlate_keeps_the_dtype_of_its_arguments(algorithm):
    x = torch.rand(3)
    assert algorithm(3).correlate(x, x).dtype == torch.float32


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tables_come_in_the_dtype_asked_for(algorithm):
    assert {table.dtype for table in algorithm(5)} == {torch.float64}
    rounded = algorithm(5, dtype=torch.float32)
    assert {table.dtype for table in rounded} == {torch.float32}
    # Rounded from float64, not computed in float32.
    for table, exact in zip(rounded, algorithm(5), strict=True):
        assert torch.equal(table, exact.float())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tables_hold_numbers_under_a_meta_default_device(algorithm):
    with torch.device("meta"):
        tables = algorithm(4)
    for table, expected in zip(tables, algorithm(4), strict=True):
        assert torch.equal(table, expected)
