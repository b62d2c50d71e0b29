from __future__ import annotations

import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from gatekeeper_adapters.engines.reference import linear  # noqa: E402 - after the skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("packing", ["as measured", "no half", "refused"])
@pytest.mark.parametrize("invariant", ["fast", "invariant"])
def test_every_kernel_gives_the_same_product(
    dtype: str, packing: str, invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = getattr(torch, dtype)
    torch.manual_seed(0)
    weight = torch.randn(48, 64).to(kind)
    if packing != "as measured":
        monkeypatch.setattr(linear, "prepack_half", lambda _: None)
    if packing == "refused":
        monkeypatch.setattr(linear, "prepack", lambda _: None)
    product = linear.Linear(weight, invariant=invariant == "invariant")
    assert product.bytes >= weight.numel() * weight.element_size()
    for rows in (1, 2, 3, 8, 33, 70):
        x = torch.randn(rows, 64).to(kind)
        out = product(x)
        assert out.dtype == kind
        tolerance = 1e-4 if kind == torch.float32 else 0.15
        torch.testing.assert_close(
            out.float(), x.float() @ weight.float().T, atol=tolerance, rtol=1e-2
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_weight_that_was_replaced_is_let_go(dtype: str) -> None:
    weight = torch.randn(48, 64).to(getattr(torch, dtype))
    product, given = linear.Linear(weight), weakref.ref(weight)
    del weight
    assert (given() is not None) == product.keeps_original


def test_half_storage_is_counted_with_its_last_block_filled_up() -> None:
    weight = torch.randn(16, 513).to(torch.bfloat16)
    held = linear.Linear(weight)
    if held.inputs_block == 1:
        pytest.skip("this processor has bf16 arithmetic")
    assert held.bytes == 16 * 1024 * 2


def test_absent_private_operators_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise AttributeError("no such operator")

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", broken, raising=False)
    assert linear.prepack(torch.ones(4, 4)) is None


def test_half_storage_holds_the_very_same_numbers() -> None:
    torch.manual_seed(0)
    weight = torch.randn(48, 64).to(torch.bfloat16) * 3e-5
    product = linear.prepack_half(weight)
    assert product is not None
    # one unit row at a time reads the weights back
    assert torch.equal(product(torch.eye(64, dtype=torch.bfloat16)), weight.T)


@pytest.mark.parametrize("strange", [1e-12, float("inf"), float("nan")])
def test_weights_that_half_cannot_hold_are_left_to_another_kernel(strange: float) -> None:
    weight = torch.ones(4, 4, dtype=torch.bfloat16)
    weight[0, 0] = strange
    assert linear.prepack_half(weight) is None
    assert linear.prepack_half(torch.zeros(4, 4, dtype=torch.bfloat16)) is None


def test_blocks_cover_every_row() -> None:
    blocked = linear._blocked(lambda x: x * 2)
    x = torch.arange(70.0).unsqueeze(1)
    assert torch.equal(blocked(x), x * 2)
