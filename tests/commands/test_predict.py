"""Filling masks and classifying files."""

import json
import re
import sys
import threading

import pytest
from PIL import Image

import gmlp_flax
from gmlp_flax import config as gmlp_config
from gmlp_flax.commands import predict
from gmlp_flax.data.embedded import embedded_digits
from gmlp_flax.errors import DataError, RunError
from gmlp_flax.tasks.inference.prediction import Answer, shown
from gmlp_flax.training import loop, pretrained
from tests import preloaded


def run(*arguments, text=""):
    """Runs the command; returns its exit code, standard output and standard error."""
    done = preloaded.gmlp("predict", *arguments, input=text)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.smoke
def test_text_from_standard_input(text_run):
    code, out, error = run(
        f"--workdir={text_run}", "--top=2", text="A [MASK] b.\n\nThe [MASK] [MASK].\n"
    )
    assert code == 0, error
    lines = out.splitlines()
    heads = ["A [MASK] b.", "  [MASK] 1", "The [MASK] [MASK].", "  [MASK] 1", "  [MASK] 2"]
    assert [line.partition(":")[0] for line in lines] == heads
    assert all(line.count("%") == 2 for line in lines if "1:" in line)


def test_images_from_files(image_run, tmp_path):
    digit = embedded_digits("heldout").examples.images[0]
    Image.fromarray(digit[..., 0]).save(tmp_path / "digit.png")
    code, out, error = run(f"--workdir={image_run}", "--top=3", str(tmp_path / "digit.png"))
    assert code == 0, error
    [[expected]] = pretrained.load(image_run).predict([digit], top=3)
    assert out == f"{tmp_path / 'digit.png'}: {shown(expected)}\n"


def test_answer_is_printed_before_the_next_line_arrives(text_run, causal_run):
    """Into a pipe that nobody closes; as many answers as lines, each after its own."""
    for folder, options, answer in (
        (text_run, ["--top=1"], "  [MASK] 1: "),
        (causal_run, ["--top=1"], "  next: "),
    ):
        process = preloaded.start("-m", "gmlp_flax", "predict", f"--workdir={folder}", *options)
        watch = threading.Timer(300, process.kill)  # instead of waiting for ever
        watch.start()
        for line in ("A [MASK] b.\n", "The [MASK].\n"):
            line = line if folder == text_run else line.replace("[MASK]", "one")
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == line
            assert process.stdout.readline().startswith(answer)
        assert process.communicate()[0] == ""
        assert process.returncode == 0
        watch.cancel()


def test_one_bad_image_does_not_stop_the_others(image_run, tmp_path):
    for number in range(3):
        digit = embedded_digits("heldout").examples.images[number]
        path = tmp_path / "photos" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(digit[..., 0]).save(path)
    (tmp_path / "photos" / "1a.png").write_bytes(b"no image")
    (tmp_path / "photos" / "notes.md").write_text("not of interest")
    (tmp_path / "empty").mkdir()
    words = [
        f"{tmp_path}/none.png",
        f"{tmp_path}/photos",
        f"{tmp_path}/empty",
        f"{tmp_path}/photos/[02].png",
    ]
    code, out, error = run(f"--workdir={image_run}", "--batch_size=2", "--top=1", *words)
    paths = [line.partition(":")[0] for line in out.splitlines()]
    expected = [f"{tmp_path}/photos/{number}.png" for number in (0, 1, 2, 0, 2)]
    assert paths == expected
    first, second, third = error.splitlines()
    assert code == 1
    assert "none.png failed (No such file" in first
    assert "1a.png' is in no format" in second
    assert f"{tmp_path}/empty has no file of these: .jpg" in third
    code, again, error = run(f"--model={image_run}", "--top=1", text=f"{tmp_path}/photos/2.png\n")
    assert (code, error) == (0, "")
    assert again == out.splitlines(keepends=True)[2]


def test_json_objects_in_and_out(text_run, image_run):
    given = ['{"input": "A [MASK] b.", "id": 7}', "The [MASK].", "none", "", '{"input": 3}', "{"]
    code, out, error = run(f"--workdir={text_run}", "--json", "--top=2", text="\n".join(given))
    first, second, *bad = map(json.loads, out.splitlines())
    model = pretrained.load(text_run)
    for record, line in ((first, "A [MASK] b."), (second, "The [MASK].")):
        [[ranked]] = model.predict([line], top=2)
        ((best, _),) = record["predictions"]
        assert record["input"] == line
        assert best["label"] == ranked[0][0]
        assert best["score"] == pytest.approx(ranked[0][1], rel=1e-5)
    assert first["id"] == 7
    assert code == 1
    assert [record["input"] for record in bad] == ["none", None, None]
    assert "there is no [MASK]" in bad[0]["error"]
    places = [line.split(": ")[1] for line in error.splitlines()]
    assert places == [f"standard input, line {number}" for number in (3, 5, 6)]


def test_texts_from_files(text_run, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "a.txt").write_text("A [MASK] b.\n\nnothing\nThe [MASK].")
    (tmp_path / "more" / "b.txt").write_text(
        "one [MASK]\r\n" + "word " * 60 + "[MASK]\n[MASK]" + " word" * 60
    )
    (tmp_path / "more" / "c.bin").write_bytes(b"\xff")
    words = [
        f"--workdir={text_run}",
        f"{tmp_path}/*.txt",
        f"{tmp_path}/more",
        f"{tmp_path}/none.txt",
    ]
    code, out, error = run(*words, "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert ["predictions" in line for line in lines] == [
        True,
        False,
        True,
        True,
        False,
        False,
        False,
    ]
    places = ["a.txt, line 3", "b.txt, line 2", "b.txt, line 3", "none.txt': arguments"]
    got = [place in line for place, line in zip(places, error.splitlines(), strict=True)]
    assert got == [True] * 4
    code, out, error = run(*words[:3], "--truncate", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert ["predictions" in line for line in lines] == [True, False, True, True, False, True]
    assert re.search(
        r"note: .*b.txt, line 3: the line has \d+ tokens; the model reads the first 32 of them",
        error,
    )


def test_progress_bar_is_shown_on_a_terminal(image_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    predictor = pretrained.load(image_run).predictor
    answers = [Answer("a.png", [[("3", 0.5)]]), Answer("b.png", [], DataError("b.png is missing"))]
    assert predict.write(answers, predictor, as_json=False, typed=False) == (2, 1)
    out, err = capsys.readouterr()
    assert out.strip() == "a.png: 3 50.0%"
    assert "2 inputs" in err
    assert "error: b.png is missing\n" in err
    assert predict.write(answers, predictor, as_json=False, typed=True) == (2, 1)
    assert capsys.readouterr().err == "error: b.png is missing\n"


def test_terminal_escape_codes_in_names_are_printed_as_text():
    """A stranger's classes may have any names."""
    found = shown([("\x1b[2Jcat", 0.5), (" dog", 0.25), ("\n", 0.25), (" ", 0)])
    assert found == r"\x1b[2Jcat 50.0%  dog 25.0%  '\n' 25.0%  ' ' 0.0%"


@pytest.mark.parametrize(
    ("kind", "words", "text", "code", "messages"),
    [
        ("text_run", [], "nothing masked", 1, ["no [MASK] in 'nothing masked'"]),
        ("text_run", [], "word " * 60 + "[MASK]", 1, ["reads at most 32"]),
        (
            "text_run",
            ["A [MASK] b.", "none/*.txt"],
            "",
            1,
            ["'A [MASK] b.'", "texts are lines of standard input: echo TEXT | gmlp"],
        ),
        ("image_run", ["none/*.png", "a.png"], "", 1, ["none/*.png", "a.png"]),
        ("image_run", ["BROKEN"], "", 1, ["is in no format Pillow knows"]),
        ("image_run", [], "", 2, ["give image files"]),
    ],
)
def test_user_errors_are_one_line(request, tmp_path, kind, words, text, code, messages):
    (tmp_path / "broken.png").write_bytes(b"no image")
    paths = [word.replace("BROKEN", f"{tmp_path}/broken.png") for word in words]
    workdir = request.getfixturevalue(kind)
    found, _, error = run(f"--workdir={workdir}", *paths, text=text)
    assert found == code, error
    lines = error.splitlines()
    for line, message in zip(lines, messages, strict=True):
        assert message in line


def test_predict_without_a_run_is_refused():
    assert "--workdir is missing" in preloaded.refused("predict")


@pytest.fixture(scope="module")
def causal_run(tmp_path_factory):
    """The folder of a finished causal gMLP on the bytes of the embedded text."""
    folder = tmp_path_factory.mktemp("causal")
    options = gmlp_config.from_file(
        "configs/causal_text.py", "gmlp,scale=quickstart,tokenizer=bytes"
    )
    options.steps = 12
    options.batch_size = 8
    options.data.cache = str(folder / "cache")
    options.model.update(layers=2, length=32, d_model=16, d_ffn=32)
    options.eval.examples = 16
    loop.train(options, str(folder / "run"))
    return folder / "run"


def test_texts_are_continued(causal_run):
    code, out, error = run(
        f"--workdir={causal_run}", "--tokens=40", "--temperature=0", text="The \u00e9tat\n\nIf\n"
    )
    assert code == 0, error
    first, second = gmlp_flax.load(str(causal_run)).generate(
        ["The \u00e9tat", "If"], tokens=40, temperature=0.0
    )
    assert out == f"The \u00e9tat{first}\nIf{second}\n"
    assert len(first) > 10
    lines = error.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert re.match(r"\d+ tokens in [\d.]+ s \([\d,]+ a second\)", line)
    assert "windows of 32 tokens read: 3" in lines[0]


def test_long_text_and_ranking_of_the_next_token(causal_run):
    code, out, error = run(f"--workdir={causal_run}", "--tokens=1", text="x" * 50)
    assert code == 0
    assert "line 1: the line has 50 tokens; the model reads the last 31 of them\n" in error
    code, out, error = run(f"--workdir={causal_run}", "--top=2", text="the")
    first, second = out.splitlines()
    assert (code, first) == (0, "the")
    assert re.match(r"  next: .* \d+\.\d%  .* \d+\.\d%$", second)


def test_continuation_errors_are_one_line(causal_run, text_run):
    cases = [
        (causal_run, ("--top_p=1.5",), "a", "top_p is 1.5"),
        (
            causal_run,
            ("--top=3", "--tokens=2"),
            "a",
            "--tokens is for continuations, without --top",
        ),
        (text_run, ("--tokens=5",), "a [MASK]", r"--tokens is for continuations, .* masked_lm"),
    ]
    for folder, options, text, message in cases:
        code, _, error = run(f"--workdir={folder}", *options, text=text)
        assert code == 2, (options, error)
        assert re.search(message, error), error
        assert len(error.splitlines()) == 1, error
    code, out, error = run(f"--workdir={causal_run}", "--tokens=2", text="a [MASK] b\nthe\n")
    assert code == 1
    assert out.startswith("the")
    assert len(out.splitlines()) == 1
    assert error.startswith(
        "error: standard input, line 1: a causal model continues a text and fills no [MASK]: "
    )
    with pytest.raises(RunError, match="^the task masked_lm does not continue texts"):
        gmlp_flax.load(str(text_run)).generate(["a"])


@pytest.mark.parametrize(
    ("run", "given", "words"),
    [
        ("text_run", b"A [MASK] b.\n\xff [MASK]\n", "line 2: not UTF-8 (byte 0xff); convert it"),
        (
            "text_run",
            "A [MASK] b.".encode("utf-16-le"),
            "line 1: not UTF-8 (a zero byte, as UTF-16 has)",
        ),
        # also by a model of bytes
        ("causal_run", b"good\nbad \xff\n", "line 2: not UTF-8 (byte 0xff); convert it"),
    ],
)
def test_non_utf8_text_is_one_line(request, run, given, words):
    process = preloaded.start(
        "-m", "gmlp_flax", "predict", f"--workdir={request.getfixturevalue(run)}"
    )
    process.stdin.buffer.write(given)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert f"error: standard input, {words}" in err, err
    assert b"\n" not in given or out.startswith(
        given.decode("utf-8", "replace").partition("\n")[0]
    ), out
