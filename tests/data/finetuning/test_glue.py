from gmlp_flax.data.finetuning.glue import GLUE_TASKS


def test_labels_are_in_the_order_of_tfds():
    """In TFDS's builders, whose order numbered labels follow, in JSON lines and in TFDS's
    records."""
    from tensorflow_datasets.text import glue

    builders = {builder.name: builder for builder in glue.Glue.BUILDER_CONFIGS}
    for name in GLUE_TASKS.keys() - {"snli"}:  # SNLI is not part of GLUE
        builder, task = builders[name], GLUE_TASKS[name]
        assert tuple(builder.label_classes) == task.labels
        wanted = zip(builder.text_features, task.texts, strict=True)
        assert all(feature in names for feature, names in wanted)
    assert (
        GLUE_TASKS["snli"].labels
        == GLUE_TASKS["mnli"].labels
        == ("entailment", "neutral", "contradiction")
    )
