"""The engine on TensorFlow, which distributes by `tf.distribute`."""
