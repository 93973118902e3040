"""Folder of a script that `geminga.spark.pipelines.running` starts; it must have no neighbours."""
