"""Data sources: `spark.read.format("pgoutput")` and `spark.readStream.format("pgoutput")`."""
