"""Data to host batches: data sets, tokenizers, and the pipeline from (seed, step) to a batch.

Nothing here knows models or devices, and nothing imports jax. Import modules by name.

    dataset      what a data set is: examples by position of one split
    readers/     a file for each documented form of data, which gives the splits of a data set
    splits       the words that mean splits, and which split a run reads
    holdout      which examples of a shared split are held out
    classes      their names, their order, and labels as positions in it
    checks       what every data set is checked for
    rows         rows with named columns, from tables, JSON lines, parquet and Arrow files
    pipeline     examples to one host's batches
    embedded     a small text and a small set of images that need no download
    text/        corpora and tokenizers; token ids on disk, made by `prepare`, read by `packing`
    images/      stores of files, decoding, views and augmentation; ReaL labels
    finetuning/  published tasks of labelled text, pairs; SQuAD's questions, windows, answers
    listops      trees drawn by its grammar, and its data set on disk
"""
