import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.spark.sql.SparkSession;

/** One MERGE into a Delta table; behind it, as the arguments say, a wait at a gate, or further writes. */
public final class Load {
    private Load() {}

    public static void main(String[] arguments) throws Exception {
        String table = arguments[0];
        Path gate = Path.of(arguments[1]);
        SparkSession spark = SparkSession.builder().getOrCreate();
        spark.sql("MERGE INTO delta.`" + table + "` t USING (SELECT id FROM range(5, 15)) s ON t.id = s.id"
            + " WHEN MATCHED THEN UPDATE SET v = t.v + 1 WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 100)");
        if (Files.exists(gate)) {
            Files.createFile(Path.of(gate + ".inside"));
        }
        while (Files.exists(gate)) {
            Thread.sleep(50);
        }
        for (int each = 2; each < arguments.length; each++) {
            SparkSession session = arguments[each].equals("in a new session") ? spark.newSession() : spark;
            session.sql("INSERT INTO delta.`" + table + "` VALUES (500, " + each + ")");
            System.out.println("inserted " + arguments[each]);
        }
    }
}
