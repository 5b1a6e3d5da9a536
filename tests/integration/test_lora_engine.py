"""LoRA adapters in the real engine: the log-probabilities of merged weights, alone and in mixed batches."""

import math
import time
from array import array

import pytest
from msgspec import structs
from tests.support.hf_families import CASES, random_sequences, save_model
from tests.support.lora_files import PROJECTIONS, merged, random_sides, write_adapter
from tests.support.real_engine import RealEngine

from headrace.core.errors import BadRequestError, NotFoundError, OverloadedError
from headrace.core.pooling import PoolingParams, PoolKind
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams
from headrace.engine.messages import AdapterOrder

PROMPTS = random_sequences((27, 9, 1, 18))


class Adapters:
    """A base model on disk, three adapters, and transformers' models of all four."""

    def __init__(self, name, path):
        self.path = path / "base"
        base = save_model(next(case for case in CASES if case.name == name), self.path)
        all_of = random_sides(base, PROJECTIONS, 4, 1)
        some = random_sides(base, ("q_proj", "v_proj"), 8, 2)
        mixed = random_sides(base, ("k_proj", "down_proj"), 3, 3, {"down_proj": 5})
        write_adapter(path / "all", all_of, rank=4, alpha=6)
        write_adapter(path / "some", some, rank=8, alpha=4, use_rslora=True)
        write_adapter(
            path / "mixed",
            mixed,
            rank=3,
            alpha=3,
            rank_pattern={"down_proj": 5},
            alpha_pattern={"mlp.down_proj": 20},
        )
        self.lora = tuple(f"{name}={path / name}" for name in ("all", "some", "mixed"))
        self.models = {
            None: base,
            "all": merged(base, all_of, {"": 1.5}),
            "some": merged(base, some, {"": 4 / math.sqrt(8)}),
            "mixed": merged(base, mixed, {"": 1.0, "down_proj": 4.0}),
        }


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def served(request, tmp_path_factory):
    adapters = Adapters(request.param, tmp_path_factory.mktemp(request.param))
    with RealEngine(adapters.path, kv_dtype="f32", lora=adapters.lora, threads=2) as engine:
        digests = {info.name: info.digest for info in engine.built.info.adapters}
        yield adapters, engine, {None: None, **digests}


def ask(name, prompt, adapter, max_tokens=6, n=1):
    return Request(
        request_id=name,
        prompt=(TokenSegment(list(map(int, prompt))),),
        params=SamplingParams(max_tokens=max_tokens, temperature=0.0, logprobs=3),
        adapter=adapter,
        n=n,
    )


def check(model, prompt, said):
    """Each token is the likeliest of the transformers model, with its log-probability."""
    import torch

    ids = [*map(int, prompt), *said.token_ids]
    with torch.no_grad():
        truth = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    for place, entry in enumerate(said.logprobs):
        row = truth[len(prompt) + place - 1]
        assert entry.token_id == int(row.argmax())
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=2e-4)


def test_a_mixed_batch_gives_what_merged_weights_give(served):
    adapters, engine, digests = served
    requests, wanted = [], {}
    for i, prompt in enumerate(PROMPTS):
        for name, digest in digests.items():
            key = f"{i}-{name}"
            requests.append(ask(key, prompt, digest))
            wanted[key] = (adapters.models[name], prompt)
    said = engine.run(requests)
    first = {said[f"0-{name}", 0].token_ids[0] for name in digests}
    assert len(first) > 1
    for key, (model, prompt) in wanted.items():
        check(model, prompt, said[key, 0])
    # Alone: the same to the bit, for base rows too.
    for name, digest in digests.items():
        alone = engine.run([ask(f"alone-{name}", PROMPTS[0], digest)])[f"alone-{name}", 0]
        assert alone == said[f"0-{name}", 0]


def test_prefixes_are_shared_within_an_adapter_only(served):
    _, engine, digests = served
    prompt = random_sequences((40,), seed=9)[0]
    first = engine.run([ask("a", prompt, digests["all"])])["a", 0]
    again = engine.run([ask("b", prompt, digests["all"])])["b", 0]
    other = engine.run([ask("c", prompt, digests["some"])])["c", 0]
    assert (first.num_cached, again.num_cached, other.num_cached) == (0, 32, 0)
    assert first == again != other


def test_an_engine_with_adapters_says_what_one_without_says(served):
    adapters, engine, _ = served
    requests = [ask(f"plain{i}", prompt, None) for i, prompt in enumerate(PROMPTS)]
    with RealEngine(adapters.path, kv_dtype="f32", threads=2) as plain:
        wanted = plain.run(requests)
    found = engine.run(requests)
    assert [found[r.request_id, 0] for r in requests] == [wanted[r.request_id, 0] for r in requests]


@pytest.mark.parametrize("plans", [1, 3])
def test_loading_and_unloading_while_others_run(tmp_path, plans):
    adapters = Adapters("llama", tmp_path)
    paths = dict(entry.split("=") for entry in adapters.lora)
    with RealEngine(
        adapters.path,
        kv_dtype="f32",
        lora=adapters.lora[:1],
        max_loras=2,
        max_uncommitted_plans=plans,
    ) as engine:
        digest = engine.built.info.adapters[0].digest
        engine.add(ask("long", PROMPTS[0], digest, 30, n=2))
        engine.step()
        some = engine.engine.load_adapter("some", paths["some"])
        engine.add(ask("other", PROMPTS[1], some.digest, 4))
        with pytest.raises(OverloadedError, match="--max-loras"):
            engine.engine.load_adapter("mixed", paths["mixed"])
        with pytest.raises(BadRequestError, match="is loaded"):
            engine.engine.load_adapter("some", paths["mixed"])
        with pytest.raises(NotFoundError):
            engine.engine.unload_adapter("nobody")
        again = engine.engine.load_adapter("alias", paths["all"])
        assert again.digest == digest
        engine.engine.unload_adapter("alias")
        assert engine.engine.take_unloaded() == ["alias"]
        engine.engine.unload_adapter("all")
        engine.step()
        assert engine.engine.take_unloaded() == []  # two outputs of `long` still run
        late = engine.engine.add(ask("late", PROMPTS[0], digest))
        assert [event.error_kind for event in late] == ["NotFoundError"]
        said = engine.finish()
        assert engine.engine.take_unloaded() == ["all"]
        check(adapters.models["all"], PROMPTS[0], said["long", 1])
        check(adapters.models["some"], PROMPTS[1], said["other", 0])
        mixed = engine.engine.load_adapter("mixed", paths["mixed"])
        said = engine.run([ask("mixed", PROMPTS[0], mixed.digest, 5)])
        check(adapters.models["mixed"], PROMPTS[0], said["mixed", 0])


def embed(name, prompt, adapter, kind=PoolKind.MEAN):
    request = ask(name, prompt, adapter)
    return structs.replace(request, pooling=PoolingParams(kind, normalize=False))


def vectors(engine, requests):
    """float32 of each request, and the books balance after."""
    found = {}
    events = [event for request in requests for event in engine.engine.add(request)]
    while engine.engine.has_work():
        events += engine.engine.step()
    for event in events:
        assert event.error is None, event.error
        found[event.request_id] = array("f", event.vector)
    return found


def test_vectors_of_texts_are_those_of_merged_weights(served):
    import torch

    adapters, engine, digests = served
    requests = [
        embed(f"{i}-{name}", prompt, digest)
        for i, prompt in enumerate(PROMPTS)
        for name, digest in digests.items()
    ]
    found = vectors(engine, requests)
    for i, prompt in enumerate(PROMPTS):
        for name, model in adapters.models.items():
            with torch.no_grad():
                states = model.model(torch.tensor([list(map(int, prompt))])).last_hidden_state[0]
            wanted = states.mean(0).tolist()
            assert found[f"{i}-{name}"].tolist() == pytest.approx(wanted, abs=2e-3)
        assert found[f"{i}-all"] != found[f"{i}-None"]
    alone = vectors(engine, [embed("alone", PROMPTS[0], digests["all"])])
    assert alone["alone"] == found["0-all"]
    (end,) = engine.engine.add(embed("nobody", PROMPTS[0], "0" * 64))
    assert (end.error_kind, end.vector) == ("NotFoundError", None)


def answers(engine, *orders, is_held=False):
    """What comes of orders, while steps go on; no sequence moves while the engine is held."""
    for order in orders:
        engine.engine.order_adapter(order)
    found = {}
    while len(found) < len(orders):
        found |= {answer.job: answer for answer in engine.engine.take_adapter_answers()}
        if is_held:
            time.sleep(0.001)
        else:
            engine.step()
    return [found[order.job] for order in orders]


def order(job, name, path=None, **fields):
    return AdapterOrder(job=job, name=name, path=None if path is None else str(path), **fields)


@pytest.mark.parametrize("plans", [1, 3])
def test_orders_while_requests_run(tmp_path, plans):
    adapters = Adapters("llama", tmp_path)
    (tmp_path / "empty").mkdir()
    with RealEngine(
        adapters.path,
        kv_dtype="f32",
        lora_root=str(tmp_path),
        max_loras=1,
        max_uncommitted_plans=plans,
    ) as engine:
        assert engine.built.info.adapters == ()
        bad, good, own = answers(
            engine,
            order(1, "bad", tmp_path / "empty"),
            order(2, "a", tmp_path / "all"),
            order(3, "base", tmp_path / "all"),
        )
        assert (bad.error_kind, bad.param, bad.adapters) == ("BadRequestError", "lora_path", None)
        assert own.error == "'base' is the model's own name."
        (info,) = good.adapters
        engine.add(ask("running", PROMPTS[0], info.digest, 30))
        engine.add(embed("text", PROMPTS[0], info.digest))
        engine.step()
        # The one place is used by what runs: a name cannot be given other content now.
        full, twice = answers(
            engine,
            order(4, "a", tmp_path / "some", in_place=True),
            order(5, "a", tmp_path / "some"),
            is_held=True,
        )
        assert (full.error_kind, twice.error_kind) == ("OverloadedError", "BadRequestError")
        (gone,) = answers(engine, order(6, "a"), is_held=True)
        assert gone.adapters == ()
        said = engine.finish()["running", 0]
        assert len(said.token_ids) == 30
        check(adapters.models["all"], PROMPTS[0], said)
        loaded, replaced, same = answers(
            engine,
            order(7, "a", tmp_path / "all"),
            order(8, "a", tmp_path / "some", in_place=True),
            order(9, "a", tmp_path / "some", in_place=True),
        )
        assert loaded.adapters[0].digest == info.digest != replaced.adapters[0].digest
        assert same.adapters == replaced.adapters
        said = engine.run([ask("new", PROMPTS[1], replaced.adapters[0].digest)])["new", 0]
        check(adapters.models["some"], PROMPTS[1], said)
        (missing,) = answers(engine, order(10, "nobody"))
        assert missing.error_kind == "NotFoundError"
        names = [order(20 + i, f"n{i}", tmp_path / "some") for i in range(16)]
        kinds = [answer.error_kind for answer in answers(engine, *names)]
        assert kinds == [""] * 15 + ["OverloadedError"]
        engine.engine.order_adapter(order(40, "late", tmp_path / "all"))  # closed while it is read


def test_a_place_that_cannot_be_filled_is_given_back(tmp_path, monkeypatch):
    adapters = Adapters("llama", tmp_path)
    with RealEngine(adapters.path, kv_dtype="f32", lora_root=str(tmp_path), max_loras=1) as engine:
        table = engine.engine._adapters._table
        put, removed = table.put, []
        monkeypatch.setattr(table, "put", lambda *given: 1 / 0)
        monkeypatch.setattr(table, "remove", removed.append)
        failed, kept = answers(engine, order(1, "a", tmp_path / "all"), order(2, "nobody"))
        assert (failed.error_kind, kept.error_kind) == ("InternalError", "NotFoundError")
        assert failed.error == "The adapter could not be loaded: ZeroDivisionError."
        assert removed == [1]
        monkeypatch.setattr(table, "put", put)
        (good,) = answers(engine, order(3, "a", tmp_path / "some"))
        said = engine.run([ask("a", PROMPTS[0], good.adapters[0].digest)])["a", 0]
        check(adapters.models["some"], PROMPTS[0], said)


def test_without_a_root_there_is_no_place(tmp_path):
    adapters = Adapters("llama", tmp_path)
    with RealEngine(adapters.path, kv_dtype="f32") as engine:
        (answer,) = answers(engine, order(1, "a", tmp_path / "all"))
        assert answer.error_kind == "BadRequestError"
        assert "--lora-root" in answer.error
