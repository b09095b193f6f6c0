"""Records to host batches: sources, tokenizer, images, and the pipeline that turns (seed, step) into a batch.

Nothing here knows of models or devices, and nothing imports jax. Import the modules by name:

    corpora          documents from text, JSON lines, parquet and TFDS folders, in parts (documents, records, files)
    image_sources    what a path or tfds:NAME holds of images, as random-access sources (image_folders, image_tfds)
    readable         images that cannot be read: counted, logged, replaced
    real_labels      ReaL labels of ImageNet's validation set
    embedded         a small text and a small image set that need no download
    tokenizer        text -> ids and back: SentencePiece models (train, load) and WordPiece vocabularies
    prepare          corpus -> token ids on disk (the format: prepared), on all cores, resumed after a kill
    packing          prepared ids -> fixed-length windows, and (seed, step) -> a batch of them
    sentences        GLUE's tasks and SNLI: labelled sentences and pairs (sentence_tasks, sentence_rows)
    pairs            encoded texts -> [CLS] a [SEP] b [SEP]
    squad            SQuAD's questions; squad_windows, squad_answers and squad_metrics: to windows, back to text, scored
    images           decode, and the views used for training and evaluation
    pipeline         source -> this host's batches
    cache            files that are built once, checked, and replaced atomically
"""
