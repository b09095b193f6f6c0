"""Records to host batches: sources, tokenizers, images, and the pipeline that turns (seed, step)
into a batch.

Nothing here knows models or devices, and nothing imports jax. Import modules by name.

    pipeline     a source to one host's batches
    splits       which examples are trained on and which are held out
    embedded     a small text and a small set of images that need no download
    text/        corpora, tokenizers; token ids on disk, made by `prepare` and read as windows by
    `packing` images/      folders, tar files and TFDS folders of images, Pathfinder's; decoding and
    augmentation; ReaL labels finetuning/  sentences, pairs and long texts (GLUE, SNLI, Long Range
    Arena), and SQuAD: windows, answers, scores listops      trees drawn by its grammar, and its
    data set on disk
"""
