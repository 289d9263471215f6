"""Scripts with and without mistakes in their models: layers, weights, modes, and what outputs depend on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from tests.support.pa_preflight.data import Named, first_sample, lines, of, pictures, points, seeded, texts, walks
from tests.support.pa_preflight.models import (
    autoencoder,
    encoder_layer,
    in_order,
    language_model,
    recurrent,
    text_classifier,
)
from tests.support.pa_preflight.scripts import (
    Healthy,
    Net,
    Planting,
    Script,
    classes,
    conv_net,
    followed_by,
    images,
    layer,
    numbers,
    perceptron,
    script,
    with_layer,
)

planted, healthy = Planting(), Healthy()

# -- samples that mix, and inputs that do not matter -------------------------------------------------------------------


def _dead() -> nn.Sequential:
    model = perceptron(6, 1)
    nn.init.constant_(model.get_submodule("0").get_parameter("bias"), -100.0)
    return model


def _attends_over_the_batch(net: Any, inputs: Tensor) -> Tensor:
    weights = functional.softmax(net.scores(inputs), dim=0)
    logits: Tensor = net.head(inputs * weights * len(inputs))
    return logits


def _of_sequences(recurrence: nn.GRU, take: int | None = None) -> Script:
    return script(recurrent(recurrence, 1, take=take), nn.MSELoss(), walks())


_gru = partial(nn.GRU, 4, 16, batch_first=True)

# What the first layer returns is masked by zeros.
planted["inputs-do-not-matter", "multiplied_by_zero", "Look for a layer whose outputs are all"] = lambda: classes(
    nn.Sequential(nn.Linear(8, 32), layer(lambda hidden: hidden * torch.zeros(32)), nn.Linear(32, 4))
)
# The bias of the hidden layer is so low that its ReLU returns zeros for all samples.
planted["inputs-do-not-matter", "dead_activations"] = lambda: numbers(_dead())
# The softmax of the attention weights is over the batch instead of the features.
planted["samples-mix", "attention_over_the_batch", "missing batch_first=True"] = lambda: classes(
    Net(_attends_over_the_batch, scores=nn.Linear(8, 8), head=perceptron(8, 4))
)
# Rows are read as if the features came first, which mixes batch and features.
planted["samples-mix", "view_instead_of_a_transposition"] = lambda: classes(
    nn.Sequential(layer(lambda x: x.reshape(x.shape[1], x.shape[0]).t()), perceptron(8, 4))
)
# The model standardises its inputs by the batch instead of by the training set.
planted["samples-mix", "standardised_over_the_batch"] = lambda: classes(
    nn.Sequential(layer(lambda x: (x - x.mean(dim=0)) / (x.std(dim=0) + 1e-5)), perceptron(8, 4))
)
# A transformer layer without ``batch_first`` attends from sample to sample.
planted["samples-mix", "batch_taken_for_the_sequence"] = lambda: classes(
    nn.Sequential(
        *(nn.Embedding(20, 16), encoder_layer(batch_first=False), layer(lambda x: x.mean(dim=1)), nn.Linear(16, 3))
    ),
    data=texts(),
)
# A GRU without ``batch_first`` runs over the samples of the batch.
planted["samples-mix", "recurrence_over_the_batch"] = lambda: _of_sequences(nn.GRU(4, 16))
# A positional encoding is added along the batch.
planted["samples-mix", "positions_of_the_batch", "position encodings", "warning"] = lambda: script(
    nn.Sequential(layer(_placed), recurrent(_gru(), 1, take=-1)), nn.MSELoss(), walks()
)
# BatchNorm without running statistics, which evaluates by the batch on purpose.
healthy["batch_norm_of_each_batch"] = lambda: images(
    _with_norm(nn.BatchNorm2d(8, track_running_stats=False)), eval_dataset=pictures(80, seed=2)
)
# The output is taken at the first step, which has seen nothing else.
planted["inputs-ignored", "first_step_of_a_recurrence", "takes a single step"] = lambda: _of_sequences(_gru(), take=0)
# A slice leaves the last features out.
planted["inputs-ignored", "features_cut_off"] = lambda: classes(
    nn.Sequential(layer(lambda inputs: inputs[:, :4]), perceptron(4, 4))
)


def _placed(inputs: Tensor) -> Tensor:
    table = torch.sin(torch.arange(512.0)[:, None, None] * torch.linspace(0.1, 1, 4))
    return inputs + table[: len(inputs)]


def _with_norm(norm: nn.Module) -> nn.Sequential:
    model = conv_net()
    model[1] = norm
    return model


def _nodes_of_a_graph() -> Script:
    inputs, targets = points(200).tensors
    links = (targets[:, None] == targets[None]) & (torch.rand(200, 200) < 0.1) | torch.eye(200).bool()
    model = Net(
        lambda net, nodes: net.head(net.links @ (net.links @ net.first(nodes)).relu()),
        links=links / links.sum(dim=1, keepdim=True),
        first=nn.Linear(8, 32),
        head=nn.Linear(32, 4),
    )
    data = TensorDataset(inputs.unsqueeze(0), targets.unsqueeze(0))
    return classes(model, data=data, num_epochs=60, per_device_batch_size=1, collate_fn=first_sample)


# The only sample is a graph, whose nodes are classified by their neighbours.
healthy["nodes_of_a_graph"] = _nodes_of_a_graph


# -- sequences ---------------------------------------------------------------------------------------------------------


def _chains(length: int = 17) -> Tensor:
    """Texts in which each token mostly follows from the one before."""
    draws = seeded()
    tokens = torch.randint(0, 8, (320, length), generator=draws)
    for step in range(1, length):
        follows = torch.rand(320, generator=draws) < 0.8
        tokens[:, step] = torch.where(follows, (3 * tokens[:, step - 1] + 1) % 8, tokens[:, step])
    return tokens


def _shifted(tokens: Tensor) -> TensorDataset:
    return TensorDataset(tokens[:, :-1], tokens[:, 1:])


def _language(*, is_causal: bool) -> Net:
    def compute(net: Any, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]) if is_causal else None
        logits: Tensor = net.head(net.layer(net.tokens(tokens), src_mask=mask))
        return logits.transpose(1, 2)

    return Net(compute, tokens=nn.Embedding(8, 16), layer=encoder_layer(), head=nn.Linear(16, 8))


def _padded() -> TensorDataset:
    lengths = torch.randint(4, 13, (320, 1), generator=seeded())
    return of(texts(), lambda x, y: (torch.where(torch.arange(12) < lengths, x, 0), y))


def _mean_of_words(padding_idx: int | None, *, is_masked: bool) -> Net:
    def compute(net: Any, tokens: Tensor) -> Tensor:
        number = (tokens != 0).sum(1, keepdim=True) if is_masked else tokens.shape[1]
        logits: Tensor = net.head(net.words(tokens).sum(1) / number)
        return logits

    return Net(compute, words=nn.Embedding(20, 16, padding_idx=padding_idx), head=nn.Linear(16, 3))


def _flattened_by_steps(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    logits = trainer.model(batch[0]).transpose(1, 2)
    return functional.cross_entropy(logits.transpose(0, 1).reshape(-1, 8), batch[1].reshape(-1)), logits


def _goes_on(net: Any, inputs: Tensor) -> Tensor:
    if net.state is not None and net.state.shape[1] != len(inputs):
        net.state = None
    states, state = net.recurrence(inputs, net.state)
    net.state = state.detach()
    outputs: Tensor = net.head(states[:, -1])
    return outputs


def _stateful() -> Net:
    model = Net(_goes_on, recurrence=_gru(), head=nn.Linear(16, 1))
    vars(model)["state"] = None
    return model


def _both_sides(turned: nn.Module) -> nn.Sequential:
    return nn.Sequential(turned, nn.Conv1d(4, 16, 3, padding=1), nn.ReLU(), nn.Conv1d(16, 4, 1), turned)


def _counting(num_samples: int, *, seed: int = 1) -> Tensor:
    """Texts in which nine of ten tokens are the one before plus three."""
    draws = seeded(seed)
    tokens = torch.randint(0, 20, (num_samples, 12), generator=draws)
    follows = torch.rand(num_samples, 12, generator=draws) < 0.9
    for position in range(1, 12):
        next_tokens = (tokens[:, position - 1] + 3) % 20
        tokens[:, position] = torch.where(follows[:, position], next_tokens, tokens[:, position])
    return tokens


def _next_token(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    logits = trainer.model(batch[0][:, :-1])
    return functional.cross_entropy(logits.transpose(1, 2), batch[0][:, 1:]), logits


def _causal_transformer() -> Net:
    return Net(
        lambda net, x: net.head(net.layer(net.embedding(x) + net.positions, src_mask=net.mask, is_causal=True)),
        embedding=nn.Embedding(20, 16),
        positions=nn.Parameter(0.02 * torch.randn(11, 16)),
        layer=encoder_layer(),
        head=nn.Linear(16, 20),
        mask=nn.Transformer.generate_square_subsequent_mask(11),
    )


def _hidden_words(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    words = torch.stack([one for one, _ in samples])
    is_hidden = torch.rand(words.shape) < 0.3
    return torch.where(is_hidden, 0, words), torch.where(is_hidden, words, -100)


def _words_hidden_at_random() -> Script:
    words = (torch.randint(1, 20, (400, 1), generator=seeded()) + torch.arange(10)) % 19 + 1
    data, evaluation = TensorDataset(words[:320], words[:320]), TensorDataset(words[320:], words[320:] * 0)
    model = nn.Sequential(language_model(), layer(lambda logits: logits.transpose(1, 2)))
    return classes(model, data=data, collate_fn=_hidden_words, eval_dataset=evaluation)


def _padded_batch(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    tokens = [tokens[: 6 + int(tokens[0]) % 7] for tokens, _ in samples]
    padded = nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    return padded, torch.stack([target for _, target in samples])


def _masked_mean(net: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    summed = (net.embedding(tokens) * mask.unsqueeze(2)).sum(dim=1)
    logits: Tensor = net.head(summed / mask.sum(dim=1, keepdim=True))
    return logits


def _of_masked(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    outputs = trainer.model(*batch[:2])
    return functional.cross_entropy(outputs, batch[2]), outputs


def _padding_in_the_evaluation_only() -> Script:
    mask = torch.ones(80, 12)
    mask[::2, 8:] = 0
    return script(
        Net(_masked_mean, embedding=nn.Embedding(20, 16), head=nn.Linear(16, 3)),
        None,
        of(texts(), lambda x, y: (x, torch.ones(320, 12), y)),
        step=_of_masked,
        evaluates=True,
        eval_dataset=of(texts(80, seed=2), lambda x, y: (x, mask, y)),
    )


# A language model has no causal mask.
planted["future-is-seen", "attention_to_the_answer", "Pass a causal mask"] = lambda: classes(
    _language(is_causal=False), data=_shifted(_chains())
)
# A convolution that is to predict the next step sees it.
planted["future-is-seen", "convolution_padded_on_both_sides"] = lambda: numbers(
    _both_sides(layer(lambda one: one.transpose(1, 2))), data=_shifted(walks().tensors[0])
)
# A causal language model is to predict the token that it is given.
planted["targets-not-shifted", "the_same_token_as_target", "Predict the next step"] = lambda: classes(
    _language(is_causal=True), data=TensorDataset(_chains(), _chains())
)
# Outputs are flattened step by step, and targets sample by sample.
planted["order-of-samples-matters", "steps_before_samples", "Look for a view()"] = lambda: classes(
    _language(is_causal=True), data=_shifted(_chains()), step=_flattened_by_steps
)
# The targets are the inputs, shifted in the step.
healthy["language_model"] = lambda: script(
    _causal_transformer(),
    None,
    TensorDataset(_counting(400)),
    train=partial(Adam, lr=5e-3),
    step=_next_token,
    evaluates=True,
    eval_dataset=TensorDataset(_counting(80, seed=2)),
)
# The head has the weights of the embedding, and the data are pairs of inputs and shifted targets.
healthy["language_model_with_tied_weights"] = lambda: script(
    language_model(is_tied=True),
    lambda logits, targets: functional.cross_entropy(logits.flatten(0, 1), targets.flatten()),
    _shifted(_counting(400)),
)
# A `collate_fn` hides words at random, in evaluations too.
healthy["words_hidden_at_random"] = _words_hidden_at_random
# The mean of the words counts the padding.
planted["padding-matters", "mean_over_padding", "Pass padding_idx=0", "note"] = lambda: classes(
    _mean_of_words(0, is_masked=False), data=_padded()
)
# The embedding of a word stays zero, and the one of the padding is learnt.
planted["padding-matters", "padding_index_of_a_word"] = lambda: classes(
    _mean_of_words(1, is_masked=True), data=_padded()
)
# The output of a recurrence is taken at the last step, which is padding in most samples.
planted["padding-matters", "last_step_of_padded_sequences", "pack sequences"] = lambda: classes(
    nn.Sequential(nn.Embedding(20, 4, padding_idx=0), recurrent(_gru(), 1, take=-1), nn.Linear(1, 3)), data=_padded()
)
# Texts of several lengths, which a ``collate_fn`` pads.
healthy["padded_texts"] = lambda: classes(_mean_of_words(0, is_masked=True), data=texts(), collate_fn=_padded_batch)
# Texts of the training set are cut to one length, and those of the evaluation are padded.
healthy["padding_in_the_evaluation_only"] = _padding_in_the_evaluation_only
# Whether a token comes before another is asked of attention without positions.
planted["order-ignored", "attention_without_positions", "Add position embeddings"] = lambda: classes(
    nn.Sequential(nn.Embedding(20, 16), encoder_layer(), layer(lambda hidden: hidden.mean(1)), nn.Linear(16, 3)),
    data=texts(),
)
# A recurrence begins with the state of the samples before.
planted["state-between-batches", "state_of_the_batch_before", "a new state"] = lambda: script(
    _stateful(), nn.MSELoss(), walks()
)
# Transformer layers with dropout, and AdamW with decay of the weights of layers only.
healthy["transformer_encoder"] = lambda: classes(
    text_classifier(), data=texts(), train=_decays_matrices, eval_dataset=texts(80, seed=2)
)
# A recurrent network in a regression.
healthy["gru_over_vectors"] = lambda: numbers(
    recurrent(nn.GRU(4, 32, batch_first=True), 1), data=walks(), eval_dataset=walks(80, seed=2)
)
# A recurrent network with clipped gradients.
healthy["lstm_over_tokens"] = lambda: classes(
    recurrent(nn.LSTM(16, 32, batch_first=True), 3, vocabulary=20), data=texts(), gradient_clip_norm=1.0
)


def _decays_matrices(parameters: Any) -> AdamW:
    every = [*parameters]
    decayed, others = [one for one in every if one.dim() > 1], [one for one in every if one.dim() <= 1]
    return AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=5e-3)


# -- what is trained ---------------------------------------------------------------------------------------------------


def _hidden_layer() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU())


def _head_replaced() -> Script:
    model = perceptron(8, 1000)
    optimizer = Adam(model.parameters(), lr=0.01)
    model[2] = nn.Linear(32, 4)
    return classes(model, train=optimizer)


def _trained(model: nn.Module, chosen: Callable[[str, nn.Parameter], bool], **others: Any) -> Script:
    """A script whose optimizer has the parameters with some names."""
    parameters = [one for name, one in model.named_parameters() if chosen(name, one)]
    return classes(model, train=Adam(parameters, lr=0.01), **others)


def _is_trained(_name: str, parameter: nn.Parameter) -> bool:
    return parameter.requires_grad


def _of_other(model: nn.Module, other: nn.Module, **others: Any) -> Script:
    return classes(model, train=SGD(other.parameters(), lr=0.1), **others)


def _initialised(model: nn.Module, initialise: Callable[[nn.Parameter], object]) -> nn.Module:
    """A model whose parameters have other first values."""
    for parameter in model.parameters():
        initialise(parameter)
    return model


def _frozen_with_norm() -> nn.Sequential:
    model = conv_net()
    for name in ("0", "1"):
        model.get_submodule(name).requires_grad_(False)
    return model


def _temperature(net: Any, outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs * net.scale, targets)


def _marked(model: nn.Module, owners: Callable[[nn.Module], Iterable[object]], name: str) -> nn.Module:
    for owner in owners(model):
        vars(owner)[name] = False
    return model


def _in_a_list() -> Net:
    def compute(net: Any, inputs: Tensor) -> Tensor:
        for one in net.layers:
            inputs = one(inputs).relu()
        logits: Tensor = net.head(inputs)
        return logits

    model = Net(compute, head=nn.Linear(8, 4))
    vars(model)["layers"] = [nn.Linear(8, 8) for _ in range(3)]
    return model


def _head_of_zeros(outputs: int) -> nn.Module:
    return _initialised(perceptron(8, outputs), _zero_of_last)


def _zero_of_last(parameter: nn.Parameter) -> None:
    if parameter.shape[0] < 32:
        nn.init.zeros_(parameter)


def _with_prior() -> nn.Sequential:
    model = perceptron(6, 1)
    nn.init.normal_(model.get_submodule("2").get_parameter("weight"), std=0.001)
    nn.init.constant_(model.get_submodule("2").get_parameter("bias"), -2.2)
    return model


def _huge_head() -> nn.Sequential:
    model = perceptron(8, 4)
    nn.init.normal_(model.get_submodule("2").get_parameter("weight"), std=20.0)
    return model


def _deep(*sizes: int) -> nn.Sequential:
    pairs = pairwise(sizes)
    return nn.Sequential(*[one for before, after in pairs for one in (nn.Linear(before, after), nn.ReLU())][:-1])


def _sign_of_product() -> TensorDataset:
    inputs, _ = points(features=2).tensors
    signs = torch.sign(torch.randn(len(inputs), 2, generator=seeded(5)))
    return TensorDataset(signs * (1 + 0.1 * inputs), (signs.prod(dim=1) > 0).long())


def _labels_with_noise() -> TensorDataset:
    """Five labels a sample, a twentieth of them wrong."""
    flips = torch.rand((480, 5), generator=seeded(3)) < 0.05
    return of(lines(features=8, outputs=5), lambda x, y: (x, ((y > 0) ^ flips).float()))


# ``forward`` leaves out a layer.
planted["parameters-without-gradient", "layer_that_is_not_called", "a layer that forward() does not call"] = lambda: (
    classes(
        Net(
            lambda net, x: net.head(net.first(x).relu()),
            first=nn.Linear(8, 32),
            second=nn.Linear(32, 32),
            head=nn.Linear(32, 4),
        )
    )
)
# A loop over a list of layers ends too early; there is a last batch of fewer samples.
planted["parameters-without-gradient", "last_layer_of_a_list_left_out"] = lambda: classes(in_order(2), data=points(300))
# The features are detached, so only the head learns.
planted["parameters-without-gradient", "detached_features"] = lambda: classes(
    nn.Sequential(_hidden_layer(), layer(torch.detach), nn.Linear(32, 4))
)
# The head is replaced when the optimizer has the parameters of the old one already.
planted["parameters-outside-optimizer", "head_replaced_after_the_optimizer", "Make the optimizer after"] = (
    _head_replaced
)
# The optimizer has the head only, but the rest was not frozen.
planted["parameters-outside-optimizer", "optimizer_of_the_head_only"] = lambda: _trained(
    perceptron(8, 4), lambda name, _: name.startswith("2")
)
# The user listed the parameters by name, and forgot the biases.
planted["parameters-outside-optimizer", "biases_left_out"] = lambda: _trained(
    perceptron(8, 4), lambda name, _: name.endswith("weight")
)
# The loss function has a temperature to be learnt, and the optimizer has the model only.
planted["parameters-outside-optimizer", "weights_of_the_loss_left_out", "model and loss", "warning"] = lambda: classes(
    loss=Net(_temperature, scale=nn.Parameter(torch.ones(())))
)
# The backbone is frozen, and the optimizer has all parameters.
planted["frozen-in-optimizer", "frozen_backbone_in_the_optimizer", "call requires_grad_(True)"] = lambda: classes(
    nn.Sequential(_hidden_layer().requires_grad_(False), nn.Linear(32, 4))
)
# The backbone is frozen, and not in the optimizer.
healthy["frozen_backbone"] = lambda: _trained(
    nn.Sequential(nn.Sequential(nn.Linear(8, 64), nn.ReLU()).requires_grad_(False), nn.Linear(64, 4)), _is_trained
)
# The model is made again after its optimizer.
planted["optimizer-of-another-model", "optimizer_of_the_model_before", "Make the optimizer with"] = lambda: _of_other(
    perceptron(8, 4), perceptron(8, 4)
)
# Two models of a script are confused.
planted["optimizer-of-another-model", "optimizer_of_the_teacher"] = lambda: _of_other(
    conv_net(), conv_net(channels=16), data=pictures()
)
# The last layer is initialised with a hundred times the usual weights.
planted["loss-at-start", "huge_weights_in_the_last_layer", "smaller weights in the last layer"] = lambda: classes(
    _huge_head()
)
# All layers of a deep network are initialised from a standard normal distribution.
planted["loss-at-start", "standard_normal_weights"] = lambda: classes(
    _initialised(_deep(8, 64, 64, 4), nn.init.normal_)
)
# All weights begin with the same number.
planted["units-are-identical", "weights_of_a_constant", "Initialise weights at random"] = lambda: classes(
    _initialised(_deep(8, 32, 32, 4), lambda one: nn.init.constant_(one, 0.05))
)
# A parameter has what was in memory when it was made.
planted["weights-not-initialised", "weights_from_memory", "torch.empty()"] = lambda: classes(
    Net(
        lambda net, x: net.head((x * net.scale).tanh()),
        scale=nn.Parameter(torch.full((8,), 3e19)),
        head=perceptron(8, 4),
    )
)
# The last layer begins with zeros, as in many vision transformers, so all first outputs are equal.
healthy["head_of_zeros"] = lambda: classes(_head_of_zeros(4))
# The same for several labels: all first logits are 0.
healthy["head_of_zeros_with_bce"] = lambda: classes(_head_of_zeros(5), nn.BCEWithLogitsLoss(), _labels_with_noise())
# The bias of the last layer begins at the logarithm of the odds, as one label in ten is set.
healthy["prior_as_bias"] = lambda: numbers(
    _with_prior(), nn.BCEWithLogitsLoss(), of(lines(), lambda x, y: (x, (y > 1.28).float()))
)
# A tanh at the end, for targets of around a hundred.
planted["batch-not-learnt", "outputs_between_minus_one_and_one", "keeps the model from learning", "note"] = lambda: (
    numbers(followed_by(perceptron(6, 1), nn.Tanh()), data=of(lines(), lambda x, y: (x, 100 + 20 * y)))
)
# The class is the sign of the product of two features, which no linear model can tell.
planted["batch-not-learnt", "linear_model_for_a_product", "Search for a rate with pa_schedulers"] = lambda: classes(
    nn.Linear(2, 2), data=_sign_of_product()
)
# ``requires_grad`` is set on a module, where nobody reads it.
planted["flag-without-effect", "frozen_by_an_attribute", "Call requires_grad_(False)"] = lambda: classes(
    _marked(nn.Sequential(_hidden_layer(), nn.Linear(32, 4)), lambda model: [model.get_submodule("0")], "requires_grad")
)
# ``require_grad`` is set on parameters.
planted["flag-without-effect", "frozen_by_a_misspelt_attribute", "Set requires_grad", "warning"] = lambda: classes(
    _marked(perceptron(8, 4), nn.Module.parameters, "require_grad")
)
# Four hidden layers are the same layer four times.
planted["layer-repeated", "layers_multiplied_as_a_list", "Make a new layer each time"] = lambda: classes(
    nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU())] * 4, nn.Linear(8, 4))
)
# The hidden layers are in a list of Python.
planted["layers-not-registered", "layers_in_a_list", "Use nn.ModuleList"] = lambda: classes(_in_a_list())

# -- norms, precision and modes ----------------------------------------------------------------------------------------


def _eval_of_body(net: Any, pictures: Tensor) -> Tensor:
    net.body.eval()
    logits: Tensor = net.head(net.body(pictures).relu())
    return logits


def _turned_sign(net: Any, inputs: Tensor) -> Tensor:
    logits: Tensor = net.layers(inputs)
    return logits if net.training else -logits


def _recomputed(net: Any, inputs: Tensor) -> Tensor:
    logits: Tensor = net.head(checkpoint(net.block, net.first(inputs), use_reentrant=False))
    return logits


def _normalised_twice(net: Any, inputs: Tensor) -> Tensor:
    hidden = net.norm(net.first(inputs)).relu()
    logits: Tensor = net.head(net.norm(net.second(hidden)).relu())
    return logits


def _normed(norm: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), norm, nn.ReLU(), nn.Linear(32, 4))


def _measures(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    trainer.model.eval()
    with torch.no_grad():
        trainer.log("accuracy", (trainer.model(batch[0]).argmax(dim=1) == batch[1]).float().mean())
    trainer.model.train()
    return usual_step(trainer, batch)


def usual_step(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """The step of a trainer that has none of its own."""
    outputs = trainer.model(batch[0])
    return trainer.loss_func(outputs, batch[1]), outputs


def freeze_norms(trainer: Any) -> None:
    """Put BatchNorm into evaluation mode."""
    for module in trainer.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


def _frozen_norms_in_step(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    freeze_norms(trainer)
    return usual_step(trainer, batch)


def _long_batch_norm() -> nn.Sequential:
    layers = [nn.Conv1d(4, 16, 3), nn.BatchNorm1d(16), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()]
    return nn.Sequential(layer(lambda steps: steps.transpose(1, 2)), *layers, nn.Linear(16, 1))


def _experts(bias: float = 0.0) -> Net:
    """Each sample is sent to one of four networks."""

    def compute(net: Any, inputs: Tensor) -> Tensor:
        best, chosen = net.gate(inputs).softmax(dim=1).max(dim=1)
        outputs = torch.zeros(len(inputs), 4, device=inputs.device)
        for number, expert in enumerate(net.experts):
            rows = (chosen == number).nonzero().flatten()
            if len(rows):
                outputs = outputs.index_add(0, rows, expert(inputs[rows]) * best[rows, None])
        return outputs

    gate = nn.Linear(8, 4)
    gate.bias.data[2] += bias
    return Net(compute, gate=gate, experts=nn.ModuleList(perceptron(8, 4) for _ in range(4)))


def _drops_layers(net: Any, inputs: Tensor) -> Tensor:
    hidden: Tensor = net.first(inputs)
    for one in net.layers:
        if not net.training or random.random() > 0.5:
            hidden = hidden + one(hidden)
    logits: Tensor = net.head(hidden)
    return logits


def _residual() -> Net:
    return Net(
        lambda net, x: x + net.layers(x),
        layers=nn.Sequential(nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.Dropout2d(0.1)),
    )


# BatchNorm is trained on one picture at a time.
planted["batch-of-one-with-batch-norm", "batches_of_one", "drop_last=True"] = lambda: images(per_device_batch_size=1)
# The same with a DataLoader of the script, whose default is one sample a batch.
planted["batch-of-one-with-batch-norm", "loader_of_single_pictures"] = lambda: images(
    data=DataLoader(pictures(), shuffle=True)
)
# BatchNorm meets a last batch with a single sample, at which the run fails at the end of the epoch.
planted["batch-of-one-with-batch-norm", "last_batch_of_one"] = lambda: classes(
    _normed(nn.BatchNorm1d(32)), data=points(481)
)
# The only sample of the last batch is left out, as BatchNorm cannot use it.
healthy["batch_norm_that_drops_the_last_batch"] = lambda: classes(
    _normed(nn.BatchNorm1d(32)), data=points(481), train_dataloader_kwargs={"drop_last": True}
)
# BatchNorm over positions, and a single sample in the last batch, which has ten of them.
healthy["long_batch_norm"] = lambda: numbers(_long_batch_norm(), data=walks(321))
# One sample a batch, with LayerNorm.
healthy["batches_of_one_without_batch_norm"] = lambda: classes(
    _normed(nn.LayerNorm(32)), data=points(240), train=partial(SGD, lr=0.01), per_device_batch_size=1
)
# One BatchNorm normalizes two layers, so that its statistics move twice in the forward pass.
healthy["batch_norm_for_two_layers"] = lambda: classes(
    Net(
        _normalised_twice,
        first=nn.Linear(8, 32),
        second=nn.Linear(32, 32),
        head=nn.Linear(32, 4),
        norm=nn.BatchNorm1d(32),
    )
)
# A block with BatchNorm is checkpointed, so that the backward pass computes it again.
planted["statistics-move-twice", "recomputed_batch_norm", "1 - math.sqrt(1 - m)"] = lambda: classes(
    Net(
        _recomputed,
        first=nn.Linear(8, 32),
        head=nn.Linear(32, 4),
        block=nn.Sequential(nn.BatchNorm1d(32), nn.ReLU()),
    )
)
# A frozen part is in training mode, so that its running statistics change.
planted["frozen-norm-moves", "frozen_backbone_with_batch_norm", "Call eval() on frozen"] = lambda: _trained(
    _frozen_with_norm(), _is_trained, data=pictures()
)
# The step leaves the statistics of batch norm as they are.
healthy["batch_norm_frozen_in_each_step"] = lambda: images(step=_frozen_norms_in_step)
# The weights are converted to float16, in which SGD loses small steps.
planted["half-precision-weights", "weights_in_float16", 'mixed_precision="bf16"'] = lambda: classes(
    perceptron(8, 4).half(), data=of(points(), lambda x, y: (x.half(), y)), train=partial(SGD, lr=0.1)
)
# The weights are converted to bfloat16, with the inputs converted in the model.
planted["half-precision-weights", "weights_in_bfloat16"] = lambda: numbers(
    nn.Sequential(layer(Tensor.bfloat16), *perceptron(6, 1).bfloat16(), layer(Tensor.float)),
    train=partial(SGD, lr=0.05),
)
# AdamW shrinks the weights of BatchNorm and all biases as well.
planted["weight-decay-on-norms", "decay_of_all_parameters", "parameter group with weight_decay=0"] = lambda: images(
    train=partial(AdamW, lr=0.01, weight_decay=0.1)
)
# The same with LayerNorm.
planted["weight-decay-on-norms", "decay_of_a_layer_norm"] = lambda: classes(
    _normed(nn.LayerNorm(32)), train=partial(AdamW, lr=0.01, weight_decay=0.1)
)
# ``functional.dropout`` without ``training=self.training`` is active in evaluations too.
planted["evaluation-not-repeatable", "dropout_in_evaluations", "noise that ignores self.training"] = lambda: classes(
    with_layer(layer(functional.dropout)), eval_dataset=points(96, seed=2)
)
# The noise that is to regularise the training is added in evaluations too.
planted["evaluation-not-repeatable", "noise_in_evaluations"] = lambda: numbers(
    nn.Sequential(layer(lambda x: x + 0.3 * torch.randn_like(x)), perceptron(6, 1)), eval_dataset=lines(96, seed=2)
)
# Dropout that ignores ``self.training``, evaluated by a DataLoader of the script.
planted["evaluation-not-repeatable", "dropout_in_evaluations_of_a_loader"] = lambda: classes(
    with_layer(layer(lambda hidden: functional.dropout(hidden, p=0.1, training=True))),
    eval_dataset=DataLoader(points(96, seed=2), batch_size=48),
)
# A part of the model is put into evaluation mode in each forward pass.
planted["mode-changes-in-step", "evaluation_mode_in_forward", "Look for eval()"] = lambda: images(
    Net(_eval_of_body, body=conv_net(16), head=nn.Linear(16, 4))
)
# The step measures in evaluation mode, and trains in training mode.
healthy["accuracy_without_dropout"] = lambda: classes(with_layer(nn.Dropout(0.2)), step=_measures)
# Outputs in evaluation mode have another sign.
planted["evaluation-unlike-training", "other_outputs_in_evaluation", "depends on self.training"] = lambda: classes(
    Net(_turned_sign, layers=perceptron(8, 4))
)
# Which layers a sample goes through depends on it.
healthy["mixture_of_experts"] = lambda: classes(_experts())
# At first, no sample is sent to one of the experts.
healthy["expert_that_no_batch_needs"] = lambda: classes(_experts(-20.0))
# In training, layers are left out of half of the batches.
healthy["layers_dropped_at_random"] = lambda: classes(
    Net(
        _drops_layers,
        first=nn.Linear(8, 32),
        layers=nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(4)),
        head=nn.Linear(32, 4),
    ),
    eval_dataset=points(96, seed=2),
)
# A residual network with GroupNorm and dropout of channels.
healthy["group_norm_and_residuals"] = lambda: images(
    nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), _residual(), _residual(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        nn.Linear(32, 4),
    ),
    eval_dataset=pictures(80, seed=2),
)

# -- models that do something else than to classify --------------------------------------------------------------------


def _returns_loss(net: Any, tokens: Tensor, features: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
    logits = net.head((net.of_tokens(tokens).mean(dim=1) + net.of_features(features)).relu())
    return (
        {"logits": logits} if labels is None else {"loss": functional.cross_entropy(logits, labels), "logits": logits}
    )


def _named_texts(num_samples: int, seed: int) -> Named:
    features = points(num_samples, seed=seed, classes=3).tensors[0]
    data = of(texts(num_samples, seed=seed), lambda x, y: (x, features, y))
    return Named(data, "tokens", "features", "labels")


def _siamese(net: Any, left: Tensor, right: Tensor) -> Tensor:
    distance: Tensor = (net.encoder(left) - net.encoder(right)).square().mean(dim=1)
    similarity: Tensor = net.bias - net.scale * distance
    return similarity


def _compares(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    outputs = trainer.model(*batch[:2])
    return functional.binary_cross_entropy_with_logits(outputs, batch[2]), outputs


def _pairs() -> TensorDataset:
    (left, kinds), (right, others) = (points(480, seed=seed, classes=2).tensors for seed in (1, 2))
    return TensorDataset(left, right, (kinds == others).float())


def _variational(net: Any, pictures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean, log_variance = net.encoder(pictures).chunk(2, dim=1)
    code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
    return net.decoder(code), mean, log_variance


def _evidence(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    outputs, mean, log_variance = trainer.model(batch[0])
    error = functional.mse_loss(outputs, batch[0].flatten(1), reduction="sum")
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    return (error + divergence) / len(batch[0]), outputs


def _noise(net: Any, inputs: Tensor, times: Tensor) -> Tensor:
    angles = times[:, None] * torch.exp(-torch.arange(8, device=times.device))
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    noise: Tensor = net.head(net.of_inputs(inputs) + net.of_time(waves))
    return noise


def _diffuses(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    inputs = batch[0]
    times = torch.randint(0, 1000, (len(inputs),), device=inputs.device).float()
    share, noise = torch.cos(times / 1000 * torch.pi / 2)[:, None], torch.randn_like(inputs)
    outputs = trainer.model(share * inputs + (1 - share.square()).sqrt() * noise, times)
    return functional.mse_loss(outputs, noise), outputs


def _solves(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    times = batch[0].requires_grad_()
    outputs = trainer.model(times)
    (slopes,) = torch.autograd.grad(outputs.sum(), times, create_graph=True)
    start = trainer.model(torch.zeros_like(times[:1]))
    return (slopes + outputs).square().mean() + (start - 1).square().mean(), outputs


def _penalises(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    inputs = batch[0].clone().requires_grad_()
    outputs = trainer.model(inputs)
    (gradients,) = torch.autograd.grad(outputs.square().sum(), inputs, create_graph=True)
    return functional.mse_loss(outputs, batch[1]) + 1e-3 * gradients.square().sum(dim=1).mean(), outputs


def _of_few_numbers(labels: Tensor) -> TensorDataset:
    return of(lines(480, features=4, outputs=12), lambda _, y: (y, labels))


# Batches are dictionaries of several inputs and the labels.
healthy["model_that_returns_its_loss"] = lambda: script(
    Net(_returns_loss, of_tokens=nn.Embedding(20, 16), of_features=nn.Linear(8, 16), head=nn.Linear(16, 3)),
    None,
    _named_texts(320, 1),
    eval_dataset=_named_texts(80, 2),
)
# Whether two inputs are of the same class.
healthy["siamese_inputs"] = lambda: script(
    Net(
        _siamese,
        encoder=perceptron(8, 8),
        scale=nn.Parameter(torch.tensor(1.0)),
        bias=nn.Parameter(torch.tensor(0.0)),
    ),
    None,
    _pairs(),
    step=_compares,
    evaluates=True,
)
# The dataset has labels, and an autoencoder needs none.
healthy["autoencoder_of_labelled_samples"] = lambda: script(
    autoencoder(), None, _of_few_numbers(torch.randint(0, 4, (480,), generator=seeded(3))), step=_of_squares
)
# Unlabelled samples come with the label 0, as from a folder of one class, for an autoencoder.
healthy["pictures_from_one_folder"] = lambda: script(
    autoencoder(), None, _of_few_numbers(torch.zeros(480, dtype=torch.long)), step=_of_squares
)
# Codes are drawn at random in evaluations too, and labels are not used.
healthy["variational_autoencoder"] = lambda: script(
    Net(
        _variational,
        encoder=nn.Sequential(nn.Flatten(), *perceptron(64, 8)),
        decoder=perceptron(4, 64),
    ),
    None,
    pictures(),
    step=_evidence,
    evaluates=True,
    eval_dataset=pictures(80, seed=2),
)
# Times up to 1,000 and noise are drawn at random, in evaluations too.
healthy["diffusion"] = lambda: script(
    Net(
        _noise,
        of_time=nn.Sequential(nn.Linear(16, 32), nn.SiLU()),
        of_inputs=nn.Linear(8, 32),
        head=nn.Sequential(nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 8)),
    ),
    None,
    points(),
    step=_diffuses,
    evaluates=True,
    eval_dataset=points(96, seed=2),
)
# The loss has a derivative by the inputs, and there are no targets.
healthy["differential_equation"] = lambda: script(
    nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)),
    None,
    TensorDataset(torch.rand(480, 1, generator=seeded())),
    step=_solves,
)
# The loss has a penalty of the gradients by the inputs.
healthy["gradient_penalty"] = lambda: numbers(loss=None, step=_penalises)


def _of_squares(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    outputs = trainer.model(batch[0])
    return (outputs - batch[0]).square().mean(), outputs
