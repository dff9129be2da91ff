"""Trains on GPUs or the CPU: `txl train`, started from the project's folder.

python train_gpu.py --preset text8_base --data_dir data/text8 --model_dir runs/text8
"""

import sys

from txl_tf.programs.train import main

if __name__ == "__main__":
    sys.exit(main())
