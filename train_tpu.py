"""Trains on a TPU: `txl train_tpu`, started from the project's folder.

python train_tpu.py --tpu=name --preset wt103_large --data_dir gs://bucket/wt103 --model_dir gs://bucket/run
"""

import sys

from txl_tf.programs.train_tpu import main

if __name__ == "__main__":
    sys.exit(main())
