"""Models of transformers: loaded onto the pool, cut by their own plans, generating, with adapters."""

import pytest

transformers = pytest.importorskip("transformers", reason="transformers isn't installed; tools/setup_ecosystem installs it")
import torch
from transformers import LlamaForCausalLM

import tessera.torch as tt
from tessera.torch.parallel import parallelize_module, tp_plan
from tiny import Sentences, assert_equal_states, llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    llama().save_pretrained(folder)
    return folder


def tokens():
    return Sentences().rows[:4]


def loss_and_gradients(model, x):
    loss = model(input_ids=x, labels=x).loss
    loss.backward()
    return loss.item(), {name: p.grad.cpu() for name, p in model.named_parameters()}


def assert_like_the_cpu(model, other):
    x = tokens()
    loss, gradients = loss_and_gradients(model, x.to("tessera"))
    expected, theirs = loss_and_gradients(other, x)
    assert loss == pytest.approx(expected, rel=1e-5)
    for name, value in gradients.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("device_map", ["auto", "balanced", "tessera"])
def test_device_map_brings_a_model_to_the_pool(mesh, folder, device_map):
    model = LlamaForCausalLM.from_pretrained(folder, device_map=device_map)
    assert model.device.type == "tessera"
    assert_like_the_cpu(model, LlamaForCausalLM.from_pretrained(folder))


def test_other_device_maps_are_left_to_transformers(mesh, folder):
    assert LlamaForCausalLM.from_pretrained(folder, device_map="cpu").device.type == "cpu"
    assert LlamaForCausalLM.from_pretrained(folder, device_map={"": "cpu"}).device.type == "cpu"
    assert LlamaForCausalLM.from_pretrained(folder).device.type == "cpu"


@pytest.mark.parametrize("options", [{"tp_plan": "auto"}, {"distributed_config": {"tp_plan": "auto"}}])
@pytest.mark.filterwarnings("ignore:Passing `tp_plan` directly")
def test_a_models_own_plan_cuts_it(mesh, folder, options):
    model = LlamaForCausalLM.from_pretrained(folder, **options)
    layer = model.model.layers[0]
    assert [str(one.weight.placements) for one in (layer.self_attn.q_proj, layer.self_attn.o_proj, layer.mlp.up_proj, layer.mlp.down_proj, model.lm_head)] == [
        "(Shard(0),)", "(Shard(1),)", "(Shard(0),)", "(Shard(1),)", "(Shard(0),)"]
    assert_like_the_cpu(model, LlamaForCausalLM.from_pretrained(folder))


def test_a_plan_on_one_dim_of_a_mesh(mesh22, folder):
    model = LlamaForCausalLM.from_pretrained(folder)
    parallelize_module(model, mesh22["tp"], tp_plan(model))
    assert str(model.model.layers[1].mlp.up_proj.weight.placements) == "(Replicate(), Shard(0))"
    assert_like_the_cpu(model, LlamaForCausalLM.from_pretrained(folder))


def test_a_plan_that_names_nothing_is_an_error_or_told(mesh):
    with pytest.raises(Exception, match="tp_plan: Linear has no plan for tensor parallelism; give {path: style}"):
        tp_plan(torch.nn.Linear(2, 2))
    with pytest.raises(Exception, match="'lm_head' has the style 'diagonal'; known are"):
        tp_plan(llama(), {"lm_head": "diagonal"})
    with pytest.warns(UserWarning, match="nothing of Linear matches 'w1'"):
        assert tp_plan(torch.nn.Linear(2, 2), {"w1": "colwise"}) == {}


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"do_sample": False, "min_new_tokens": 6}])
def test_generate_gives_the_tokens_of_the_cpu(mesh, folder, options):
    model = LlamaForCausalLM.from_pretrained(folder, device_map="auto").eval()
    x = tokens()
    said = model.generate(x.to("tessera"), max_new_tokens=6, pad_token_id=0, **options)
    assert said.device.type == "tessera"
    expected = LlamaForCausalLM.from_pretrained(folder).eval().generate(x, max_new_tokens=6, pad_token_id=0, **options)
    assert torch.equal(said.cpu(), expected)


class Said:
    """A streamer that keeps what it was given."""

    def __init__(self):
        self.tokens, self.has_ended = [], False

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.has_ended = True


@pytest.mark.parametrize("cache", [None, "static"])
def test_generate_ends_at_a_token_as_on_the_cpu(mesh, folder, cache):
    here, there = (LlamaForCausalLM.from_pretrained(folder, **options).eval() for options in ({}, {"device_map": "auto"}))
    x = tokens()
    free = here.generate(x, max_new_tokens=12, pad_token_id=0, do_sample=False)
    for end in {int(free[0, 11]), int(free[1, 12]), int(free[2, -1])}:      # some sequences end, or all do, at different steps
        for rows in (x[:1], x):
            options = {"max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": end, "do_sample": False}
            expected = here.generate(rows, **options)
            assert torch.equal(there.generate(rows.to("tessera"), cache_implementation=cache, **options).cpu(), expected)
    mine, its = Said(), Said()
    here.generate(x[:1], streamer=its, **options)
    there.generate(x[:1].to("tessera"), streamer=mine, cache_implementation=cache, **options)
    assert mine.tokens == its.tokens and mine.has_ended
    kept, other = (model.generate(rows, return_dict_in_generate=True, output_scores=True, cache_implementation=cache, **options)
                   for model, rows in ((there, x[:1].to("tessera")), (here, x[:1])))
    assert torch.equal(kept.sequences.cpu(), other.sequences) and len(kept.scores) == len(other.scores)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("plan", [None, "auto"])
def test_a_static_cache_makes_a_step_one_message(mesh, folder, options, plan, monkeypatch):
    from tessera.torch import _compiled
    graphs, make = [], _compiled._new_graph
    monkeypatch.setattr(_compiled, "_new_graph", lambda *given: graphs.append(make(*given)) or graphs[-1])
    torch._dynamo.reset()
    model = LlamaForCausalLM.from_pretrained(folder, **({"device_map": "auto"} if plan is None else {"tp_plan": plan})).eval()
    x = tokens()
    said = model.generate(x.to("tessera"), max_new_tokens=8, pad_token_id=0, do_sample=False, cache_implementation="static", **options)
    expected = LlamaForCausalLM.from_pretrained(folder).eval().generate(x, max_new_tokens=8, pad_token_id=0, do_sample=False, **options)
    assert torch.equal(said.cpu(), expected)
    if plan is None:        # hooks of the styles end graphs
        assert max(graph.replays for graph in graphs) >= 4 and sum(graph.runs for graph in graphs) <= 8


def test_lora_trains_saves_and_is_read_on_the_cpu(mesh, folder, tmp_path):
    peft = pytest.importorskip("peft")

    def trained(model, x):
        torch.manual_seed(0)
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0))
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        for _ in range(3):
            model(input_ids=x, labels=x).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return model

    model = trained(LlamaForCausalLM.from_pretrained(folder, device_map="auto"), tokens().to("tessera"))
    model.save_pretrained(tmp_path / "adapter")
    read = peft.PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(folder), tmp_path / "adapter")
    x = tokens()
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=x.to("tessera")).logits.cpu(), read(input_ids=x).logits, rtol=1e-4, atol=1e-5)
    expected = trained(LlamaForCausalLM.from_pretrained(folder), x)
    with torch.no_grad():
        torch.testing.assert_close(expected(input_ids=x).logits, read(input_ids=x).logits, rtol=1e-3, atol=1e-4)


def test_an_adapter_is_merged_into_its_model(mesh, folder):
    peft = pytest.importorskip("peft")

    def merged(model):
        torch.manual_seed(0)
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.0))
        for i, (name, own) in enumerate(model.named_parameters()):
            if "lora_" in name:
                own.data.copy_(torch.randn(own.shape, generator=torch.Generator().manual_seed(i)) * 0.1)
        with torch.no_grad():
            before = model(input_ids=tokens().to(model.device)).logits.cpu()
        model = model.merge_and_unload()
        with torch.no_grad():
            torch.testing.assert_close(model(input_ids=tokens().to(model.device)).logits.cpu(), before, rtol=1e-4, atol=1e-5)
        return model

    mine, its = merged(LlamaForCausalLM.from_pretrained(folder, device_map="auto")), merged(LlamaForCausalLM.from_pretrained(folder))
    assert type(mine) is LlamaForCausalLM and mine.device.type == "tessera"
    assert_equal_states(mine, its, 1e-6)
