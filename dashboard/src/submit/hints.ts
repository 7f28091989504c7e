/** What to write into a field, in few words. */

export const HINTS: Readonly<Record<string, string>> = {
  name: "Letters, digits, . _ -",
  script: "A file in the folder below, such as train.py",
  module: "Instead of a script: a module, as for python -m",
  command: "Instead of a script: any program, one word per line",
  args: "Arguments of the program, one per line",
  framework: "Of a ready-made training",
  model: "Instead of a script: a ready-made training, such as mlp; or gpt2 for huggingface",
  dataset: "For a ready-made training, such as synthetic",
  hyperparameters: "Values that the program reads",
  knobs: 'Values that may be changed live: a value, or {"value": 0.1, "min": 0, "max": 1}',
  env: "Variables of the workers; secrets are not shown",
  seed: "A number that is not negative",
  max_workers: "Upper limit of workers",
  priority: "-1000 to 1000; higher goes first",
  scheduler: "The engine that runs the job",
  options: "The engine's own options",
  "resources.memory_mb_per_worker": "0 is no limit",
  "checkpointing.store": "local, a folder, or s3://bucket/prefix",
  "checkpointing.best": "A metric; the checkpoint with its best value is kept, too",
  "recovery.attempts": "Maximum number of restarts",
  "recovery.backoff": "Seconds before the first restart",
  tags: "One tag per line",
};

export const cwdHint = "On the plane’s own machine; scripts are found from here";
export const pythonHint = "An interpreter on the plane’s machine; else the plane’s own";
