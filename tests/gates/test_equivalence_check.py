import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from faults.synthetic import MarkovLM, arrays, decode

from gatekeeper.cli.equivalence import equivalence
from gatekeeper.errors import GatekeeperError, InputError
from gatekeeper.gates.equivalence_check import check


@pytest.fixture(scope="module")
def lm() -> MarkovLM:
    return MarkovLM.make(
        np.random.default_rng(1), vocabulary=60, contexts=512, spread=3.5, noise=0.8
    )


@pytest.fixture(scope="module")
def exact(lm: MarkovLM) -> dict[str, np.ndarray]:
    return arrays(decode(lm, np.random.default_rng(0), requests=60, tokens=64))


@pytest.fixture(scope="module")
def faulty(lm: MarkovLM) -> dict[str, np.ndarray]:
    evidence = decode(
        lm, np.random.default_rng(0), requests=40, tokens=64, fault="correction_from_q"
    )
    return arrays(evidence)


def command(tmp_path: Path, evidence: dict[str, np.ndarray], *options: str) -> Result:
    path = tmp_path / "evidence.npz"
    np.savez(path, **evidence)
    return CliRunner().invoke(equivalence, ["check", str(path), *options])


def test_the_json_answer_has_the_declared_shape(
    tmp_path: Path, exact: dict[str, np.ndarray]
) -> None:
    result = command(tmp_path, exact, "--json", "--window", "0.06", "--bonus", "0.12")
    answer = json.loads(result.output)
    assert result.exit_code == 0
    assert set(answer) == {
        "outcome", "strict", "tolerance", "trace", "tokens", "tokens_to_decision",
    }  # fmt: skip
    assert set(answer["strict"]) == {"log10_e", "alpha", "worst_family"}
    assert answer["outcome"] == "PASS"
    assert answer["tokens"] == 3840
    assert 500 < answer["tokens_to_decision"] <= 3840
    assert {r["stratum"] for r in answer["tolerance"]} == {"window", "bonus"}
    assert answer["trace"]["impossible_corrections"] == 0


def test_a_fault_fails_early_and_exits_1(tmp_path: Path, faulty: dict[str, np.ndarray]) -> None:
    result = command(tmp_path, faulty, "--json")
    answer = json.loads(result.output)
    assert result.exit_code == 1
    assert answer["outcome"] == "FAIL"
    assert answer["strict"]["log10_e"] >= 3
    assert answer["tokens_to_decision"] < 500
    assert answer["trace"]["impossible_corrections"] > 50


def test_too_little_evidence_is_inconclusive_and_exits_1(
    tmp_path: Path, exact: dict[str, np.ndarray]
) -> None:
    few = {name: a[:100] for name, a in exact.items()}
    result = command(tmp_path, few, "--json")
    answer = json.loads(result.output)
    assert result.exit_code == 1
    assert answer["outcome"] == "INCONCLUSIVE"
    assert answer["tokens_to_decision"] is None


def test_the_text_answer_names_outcome_and_strongest_alternative(
    tmp_path: Path, faulty: dict[str, np.ndarray]
) -> None:
    result = command(tmp_path, faulty)
    assert result.output.startswith("FAIL: 2\u202f560 tokens, decided after")
    assert "strongest alternative: " in result.output
    assert "trace (diagnostic only)" in result.output


def test_the_answer_does_not_depend_on_what_else_is_recorded(exact: dict[str, np.ndarray]) -> None:
    bare = {n: a for n, a in exact.items() if n not in {"round", "kind", "draft"}}
    full, short = check(exact), check(bare)
    assert full["strict"] == short["strict"]
    assert full["tolerance"] == short["tolerance"]
    assert short["trace"] == {
        "available": False, "reason": "needs q, kind and draft of a chain",
    }  # fmt: skip


def test_p_alone_gives_an_answer(exact: dict[str, np.ndarray]) -> None:
    needed = ("token", "p", "prompt", "replicate", "request")
    answer = check({n: exact[n] for n in needed}, window=0.06)
    assert answer["outcome"] == "PASS"
    assert {r["stratum"] for r in answer["tolerance"]} == {"all"}
    assert not any("proposal" in r["feature"] for r in answer["tolerance"])


def test_interleaved_requests_are_put_back_in_order(exact: dict[str, np.ndarray]) -> None:
    order = np.argsort(np.arange(3840) % 64, kind="stable")
    # Requests appear in the same order, rows of each stay in theirs.
    assert check({n: a[order] for n, a in exact.items()}) == check(exact)


def test_the_envelope_lowers_the_evidence(faulty: dict[str, np.ndarray]) -> None:
    bare, covered = check(faulty), check(faulty, delta=0.05)
    assert covered["strict"]["log10_e"] < bare["strict"]["log10_e"]


def test_end_tokens_add_their_feature(exact: dict[str, np.ndarray]) -> None:
    features = {r["feature"] for r in check(exact, end_tokens=(3,))["tolerance"]}
    assert "end token" in features


def test_the_earlier_of_two_failures_decides(exact: dict[str, np.ndarray]) -> None:
    # Every token moved to the arg max: both parts fail.
    wrong = {**exact, "token": exact["p"].argmax(axis=1)}
    both = check(wrong)
    strict_alone = check(wrong, window=0.9, bonus=0.9)
    assert any(r["outcome"] == "FAIL" for r in both["tolerance"])
    assert not any(r["outcome"] == "FAIL" for r in strict_alone["tolerance"])
    # A strict part that needs 10^300 is later than the tolerance, which then decides.
    late = check(wrong, alpha=1e-300)
    late_alone = check(wrong, alpha=1e-300, window=0.9, bonus=0.9)
    assert both["tokens_to_decision"] == strict_alone["tokens_to_decision"]
    assert late["tokens_to_decision"] < late_alone["tokens_to_decision"]
    assert late["outcome"] == "FAIL"


@pytest.mark.parametrize("options", [{"alpha": 0}, {"window": 1.5}, {"bonus": 0}, {"delta": -0.1}])
def test_impossible_parameters_are_refused(
    exact: dict[str, np.ndarray], options: dict[str, float]
) -> None:
    with pytest.raises(InputError) as caught:
        check(exact, **options)
    assert caught.value.field == next(iter(options))


@pytest.mark.parametrize("content", [None, b"not a zip", b"PK\x05\x06" + b"\0" * 18])
def test_unusable_files_are_input_errors(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "evidence.npz"
    if content is not None:
        path.write_bytes(content)
    result = CliRunner().invoke(equivalence, ["check", str(path)])
    assert isinstance(result.exception, GatekeeperError)
    assert result.exception.exit_code == 2


def test_pickled_arrays_are_refused_and_never_loaded(
    tmp_path: Path, exact: dict[str, np.ndarray]
) -> None:
    path = tmp_path / "evidence.npz"
    np.savez(path, **{**exact, "token": np.array([{}] * 3, dtype=object)})
    result = CliRunner().invoke(equivalence, ["check", str(path)])
    assert isinstance(result.exception, InputError)


@pytest.mark.parametrize("fault", ["cut", "encrypted", "method", "plain member", "huge"])
def test_broken_archives_are_input_errors(
    tmp_path: Path, exact: dict[str, np.ndarray], fault: str
) -> None:
    path = tmp_path / "evidence.npz"
    np.savez_compressed(path, **exact)
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")
    if fault == "cut":
        body = data.index(b"PK\x03\x04") + 80
        data[body : body + 40] = b"\xff" * 40
    elif fault == "encrypted":
        data[entry + 8] |= 1
        data[6] |= 1
    elif fault == "method":
        data[entry + 10] = 97
    path.write_bytes(data)
    if fault in {"plain member", "huge"}:
        header = io.BytesIO()
        shape = {"descr": "<f4", "fortran_order": False, "shape": (10**12, 10**12)}
        np.lib.format.write_array_header_1_0(header, shape)
        with zipfile.ZipFile(path, "w") as archive:
            for name in exact:
                if fault == "huge":
                    archive.writestr(f"{name}.npy", header.getvalue())
                else:
                    archive.writestr(name, "hello")
    result = CliRunner().invoke(equivalence, ["check", str(path)])
    assert isinstance(result.exception, InputError)


def test_what_unpacks_to_more_than_the_memory_is_refused(
    tmp_path: Path, exact: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sysconf", lambda _name: 10)
    result = command(tmp_path, exact)
    assert isinstance(result.exception, InputError)
    assert "memory" in str(result.exception)


@pytest.mark.parametrize("token", [-1, 10**6, 10**30])
def test_end_tokens_outside_the_vocabulary_are_refused(
    exact: dict[str, np.ndarray], token: int
) -> None:
    with pytest.raises(InputError, match="outside the vocabulary"):
        check(exact, end_tokens=(token,))


def test_bad_arrays_exit_2(tmp_path: Path, exact: dict[str, np.ndarray]) -> None:
    result = command(tmp_path, {**exact, "p": exact["p"] * 2})
    assert isinstance(result.exception, InputError)
    assert result.exception.field == "p[0]"
