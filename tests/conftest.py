import tensorflow as tf

# Two logical CPUs stand in for two devices. This must come before tensorflow starts its devices, so
# before any test module is imported; everything else still runs on the first one.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
