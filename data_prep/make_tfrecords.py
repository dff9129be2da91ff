"""Creates the records of a data set: `txl prepare`, started from the project's folder.

python data_prep/make_tfrecords.py --dataset text8
"""

import sys

from txl_tf.programs.prepare import main

if __name__ == "__main__":
    sys.exit(main())
