package org.apache.spark.examples;

import java.util.Collections;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.SparkSession;

/** Estimates pi as the class of this name in Spark's distribution does, whose jar is in no registry. */
public final class SparkPi {
  private static final int POINTS = 100_000;

  public static void main(String[] arguments) {
    SparkSession spark = SparkSession.builder().appName("Spark Pi").getOrCreate();
    int slices = arguments.length > 0 ? Integer.parseInt(arguments[0]) : 2;
    long inside =
        new JavaSparkContext(spark.sparkContext())
            .parallelize(Collections.nCopies(slices, POINTS), slices)
            .map(SparkPi::inside)
            .reduce(Long::sum);
    System.out.println("Pi is roughly " + 4.0 * inside / ((double) slices * POINTS));
    spark.stop();
  }

  private static long inside(int points) {
    ThreadLocalRandom random = ThreadLocalRandom.current();
    long found = 0;
    for (int point = 0; point < points; point++) {
      double x = random.nextDouble();
      double y = random.nextDouble();
      found += x * x + y * y <= 1 ? 1 : 0;
    }
    return found;
  }
}
