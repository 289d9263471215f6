"""Sentences of Python's manual and transformers: a classifier, a language model, and adapters."""

# Written as users write, who annotate nothing: that it runs is what the tests are about, not what its types are.
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportMissingImports=false, reportOptionalCall=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: D102, D103

import copy
import re
from pydoc_data.topics import topics

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch import optim
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

from pytorch_accelerated.callbacks import TrainerCallback
from pytorch_accelerated.trainer import Trainer

CHAPTERS = ["debugger", "formatstrings", "import", "typesseq"]
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def read_sentences():
    """Pieces of the manual of different lengths, and which chapter each is from."""
    texts, labels = [], []
    for label, chapter in enumerate(CHAPTERS):
        words = re.findall(r"[a-z]+", topics[chapter].lower())[:400]
        while words:
            length = 4 + (len(words) * 7 + label) % 9
            texts.append(" ".join(words[:length]))
            labels.append(label)
            words = words[length:]
    return texts, labels


def create_tokenizer():
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(read_sentences()[0], trainers.WordLevelTrainer(special_tokens=SPECIAL_TOKENS))
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="[CLS]", eos_token="[SEP]", **names)


def create_datasets(tokenizer):
    texts, labels = read_sentences()
    dataset = Dataset.from_dict({"text": texts, "labels": labels})
    dataset = dataset.map(lambda rows: tokenizer(rows["text"]), batched=True, remove_columns=["text"])
    rows = range(len(dataset))
    return dataset.select([row for row in rows if row % 4]), dataset.select([row for row in rows if row % 4 == 0])


def create_classifier(tokenizer):
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), num_labels=len(CHAPTERS), **size))


def create_language_model(tokenizer, dropout=0.0):
    torch.manual_seed(0)
    dropouts = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    size = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 32}
    tokens = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **size, **dropouts, **tokens))


class LanguageModelTrainer(Trainer):
    """The loss is a mean over tokens, of which some batches have more than others."""

    def calculate_train_batch_loss(self, batch):
        output = self.model(**batch)
        return {
            "loss": output.loss,
            "model_outputs": output.logits,
            "batch_size": len(batch["labels"]),
            "num_items_in_batch": count_tokens(batch),
        }

    calculate_eval_batch_loss = calculate_train_batch_loss


class Generate(TrainerCallback):
    """Continues a sentence after each evaluation."""

    def __init__(self, tokenizer):
        self.tokenizer, self.generated = tokenizer, []

    def on_eval_epoch_end(self, trainer, **kwargs):
        tokens = self.tokenizer("the", add_special_tokens=False, return_tensors="pt").to(trainer.device)
        settings = {"min_new_tokens": 3, "max_new_tokens": 3, "do_sample": False}
        generated = trainer.get_model().generate(**tokens, pad_token_id=self.tokenizer.pad_token_id, **settings)
        self.generated.append(self.tokenizer.decode(generated[0]))


def count_tokens(batch):
    """The first token of a sentence is predicted by nobody, and padding is not predicted."""
    return (batch["labels"][:, 1:] != -100).sum().item()


def language_datasets(tokenizer):
    return [dataset.remove_columns("labels") for dataset in create_datasets(tokenizer)]


def language_model_with_trainer(num_ranks, checkpointing):
    """Each update has 16 sentences, in four batches of all processes together."""
    tokenizer = create_tokenizer()
    train_dataset, eval_dataset = language_datasets(tokenizer)
    model, generate = create_language_model(tokenizer).double(), Generate(tokenizer)
    if checkpointing:
        model.gradient_checkpointing_enable()
    trainer = LanguageModelTrainer(model, None, optim.SGD(model.parameters(), lr=0.5), callbacks=[generate])
    trainer.train(
        train_dataset,
        num_epochs=2,
        eval_dataset=eval_dataset,
        per_device_batch_size=4 // num_ranks,
        gradient_accumulation_steps=4,
        gradient_clip_norm=1.0,
        collate_fn=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        train_dataloader_kwargs={"shuffle": False},
    )
    assert model.lm_head.weight is model.transformer.wte.weight
    return {
        "train": trainer.run_history.get_metric_values("train_loss_epoch"),
        "eval": trainer.run_history.get_metric_values("eval_loss_epoch")[-1],
        "weights": model.state_dict(),
        "generated": generate.generated,
    }


def language_model_by_hand():
    """A loop on one process, with all sentences of an update in one batch."""
    tokenizer = create_tokenizer()
    train_dataset, eval_dataset = language_datasets(tokenizer)
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    model = create_language_model(tokenizer).double()
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        total = count = 0
        for batch in DataLoader(train_dataset, 16, collate_fn=collate):
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item() * count_tokens(batch)
            count += count_tokens(batch)
        losses.append(total / count)
    total = count = 0
    for batch in DataLoader(eval_dataset, 7, collate_fn=collate):
        with torch.no_grad():
            total += model(**batch).loss.item() * count_tokens(batch)
        count += count_tokens(batch)
    return {"train": losses, "eval": total / count, "weights": model.state_dict()}


def train_adapters(folder):
    """The weights before and after training adapters with peft, and those of the adapters alone in their folder."""
    tokenizer = create_tokenizer()
    train_dataset, _ = create_datasets(tokenizer)
    adapters = LoraConfig(r=4, target_modules=["query", "value"], modules_to_save=["classifier"])
    model = get_peft_model(create_classifier(tokenizer), adapters)
    before = copy.deepcopy(model.state_dict())
    trainer = Trainer(model, None, optim.AdamW(model.parameters(), lr=0.01), callbacks=[])
    trainer.train(train_dataset, 1, None, 8, collate_fn=DataCollatorWithPadding(tokenizer))
    trainer.save_model(folder / "trained", trainable_only=True)
    if trainer.run_config.is_world_process_zero:
        trainer.get_model().save_pretrained(folder)
    trainer.wait_for_everyone()
    return before, model.state_dict()
