"""Hugging Face's Trainer and accelerate choose the device of an open session, and train as on the CPU."""

import warnings

import pytest

pytest.importorskip("transformers", reason="transformers isn't installed; tools/setup_ecosystem installs it")
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState

import tessera.torch as tt
from tiny import Sentences, assert_equal_states, llama


@pytest.fixture(autouse=True)
def without_state():
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


def loop(cpu: bool, **options):
    """A loop as accelerate's pages have it; losses and model."""
    model, accelerator = llama(), Accelerator(cpu=cpu, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    batches = torch.utils.data.DataLoader(Sentences(), batch_size=4)
    model, optimizer, batches, schedule = accelerator.prepare(model, optimizer, batches, schedule)
    losses = []
    for batch in batches:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    return losses, accelerator.unwrap_model(model), accelerator


def test_accelerate_chooses_the_device_and_trains_as_the_cpu_does(mesh):
    losses, model, accelerator = loop(cpu=False)
    assert accelerator.device.type == "tessera" and model.device.type == "tessera"
    AcceleratorState._reset_state(True)
    expected, on_cpu, accelerator = loop(cpu=True)
    assert accelerator.device.type == "cpu" and on_cpu.device.type == "cpu"
    assert losses == pytest.approx(expected, rel=1e-5)
    assert_equal_states(model, on_cpu, 1e-4)


def test_accelerate_saves_and_loads_a_run(mesh, tmp_path):
    losses, model, accelerator = loop(cpu=False)
    accelerator.save_state(tmp_path / "run")
    before = {name: value.cpu().clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    accelerator.load_state(tmp_path / "run")
    for name, value in model.state_dict().items():
        assert value.device.type == "tessera" and torch.equal(value.cpu(), before[name])


def test_accelerate_in_bf16_uses_autocast_of_this_device(mesh):
    losses, model, accelerator = loop(cpu=False, mixed_precision="bf16")
    AcceleratorState._reset_state(True)
    expected, _, _ = loop(cpu=True, mixed_precision="bf16")
    assert losses == pytest.approx(expected, rel=2e-2)


def test_without_a_session_accelerate_takes_the_cpu_and_says_so(monkeypatch):
    from tessera import _context
    monkeypatch.setattr(_context, "open_sessions", list)
    with pytest.warns(UserWarning, match="accelerate takes the CPU: no session is open; connect with"):
        assert PartialState().device.type == "cpu"


def train(folder, cpu: bool, **options):
    model = llama()
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=4, num_train_epochs=1, logging_steps=1, report_to=[], use_cpu=cpu, disable_tqdm=True,
        eval_strategy="epoch", learning_rate=1e-2, seed=0, **options)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Sentences(), eval_dataset=Sentences(8))
    trainer.train()
    return trainer, [one["loss"] for one in trainer.state.log_history if "loss" in one], trainer.evaluate()["eval_loss"]


def test_trainer_trains_on_the_device_as_on_the_cpu(mesh, tmp_path):
    trainer, losses, evaluated = train(tmp_path / "a", cpu=False, save_strategy="no")
    assert trainer.args.device.type == "tessera" and trainer.model.device.type == "tessera"
    other, expected, evaluated_there = train(tmp_path / "b", cpu=True, save_strategy="no")
    assert other.args.device.type == "cpu" and other.model.device.type == "cpu"
    assert losses == pytest.approx(expected, rel=1e-5) and evaluated == pytest.approx(evaluated_there, rel=1e-5)
    assert_equal_states(trainer.model, other.model, 1e-4)


def test_trainer_goes_on_from_its_checkpoint(mesh, tmp_path):
    whole, losses, _ = train(tmp_path / "run", cpu=False, save_strategy="steps", save_steps=2)
    again = transformers.Trainer(model=llama(5), args=whole.args, train_dataset=Sentences(), eval_dataset=Sentences(8))
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert_equal_states(again.model, whole.model, 1e-5)
    read = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "run" / "checkpoint-4", device_map="cpu")
    assert_equal_states(read, whole.model, 0)


def test_trainer_checkpoints_activations_and_accumulates_gradients(mesh, tmp_path):
    _, losses, evaluated = train(tmp_path / "a", cpu=False, save_strategy="no", gradient_checkpointing=True, gradient_accumulation_steps=2)
    _, expected, evaluated_there = train(tmp_path / "b", cpu=True, save_strategy="no", gradient_accumulation_steps=2)
    assert losses == pytest.approx(expected, rel=1e-5) and evaluated == pytest.approx(evaluated_there, rel=1e-5)


def test_a_trainer_whose_model_lies_in_shards_keeps_them(mesh, tmp_path):
    model = llama()
    for layer in model.model.layers:
        tt.fully_shard(layer, mesh=mesh)
    tt.fully_shard(model, mesh=mesh)
    arguments = transformers.TrainingArguments(str(tmp_path), per_device_train_batch_size=4, num_train_epochs=1, logging_steps=1, report_to=[],
                                               disable_tqdm=True, save_strategy="no", learning_rate=1e-2, seed=0)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Sentences())
    trainer.train()
    losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    assert str(model.model.layers[0].mlp.up_proj.weight.placements) == "(Shard(0),)"
    _, expected, _ = train(tmp_path / "b", cpu=True, save_strategy="no")
    assert losses == pytest.approx(expected, rel=1e-5)


def test_no_warning_is_told_where_a_session_is_open(mesh):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Accelerator().device.type == "tessera"
