import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.Vector;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import java.util.logging.Logger;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.FailureMode;
import net.spy.memcached.MemcachedClient;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;
import site.ycsb.StringByteIterator;

/**
 * YCSB's operations by spymemcached: a record is one value, its fields joined by what none holds.
 *
 * <p>Every node answers for all keys: where one is gone, spymemcached asks the next. An operation
 * that fails is tried again for a while, for YCSB would otherwise count it and go on.
 */
public class Memcached extends DB {
  private static final Logger SPY = Logger.getLogger("net.spy");
  private static final String FIELD_END = "\u001e";
  private static final String NAME_END = "\u001f";

  private MemcachedClient client;

  @Override
  public void init() throws DBException {
    System.setProperty("net.spy.log.LoggerImpl", "net.spy.memcached.compat.log.SunLogger");
    SPY.setLevel(Level.OFF);
    List<InetSocketAddress> addresses = new ArrayList<>();
    for (String node : getProperties().getProperty("memcached.hosts").split(",")) {
      int colon = node.lastIndexOf(':');
      int port = Integer.parseInt(node.substring(colon + 1));
      addresses.add(new InetSocketAddress(node.substring(0, colon), port));
    }
    try {
      client = new MemcachedClient(
          new ConnectionFactoryBuilder()
              .setFailureMode(FailureMode.Redistribute)
              .setOpTimeout(2000)
              .setMaxReconnectDelay(1)
              .build(),
          addresses);
    } catch (Exception error) {
      throw new DBException(error);
    }
  }

  @Override
  public void cleanup() {
    client.shutdown(5, TimeUnit.SECONDS);
  }

  private interface Attempt {
    Status run() throws Exception;
  }

  /** Until it is answered, a minute at most. */
  private static Status retried(Attempt attempt) {
    long end = System.nanoTime() + TimeUnit.MINUTES.toNanos(1);
    while (true) {
      try {
        Status status = attempt.run();
        if (status != Status.ERROR) {
          return status;
        }
      } catch (Exception refused) {
        // A node went: the next attempt asks another.
      }
      if (System.nanoTime() > end) {
        return Status.ERROR;
      }
      try {
        Thread.sleep(20);
      } catch (InterruptedException stop) {
        return Status.ERROR;
      }
    }
  }

  @Override
  public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
    return retried(() -> {
      Object value = client.get(key);
      if (value == null) {
        return Status.NOT_FOUND;
      }
      for (String field : value.toString().split(FIELD_END)) {
        int end = field.indexOf(NAME_END);
        String name = field.substring(0, end);
        if (fields == null || fields.contains(name)) {
          result.put(name, new StringByteIterator(field.substring(end + 1)));
        }
      }
      return Status.OK;
    });
  }

  @Override
  public Status insert(String table, String key, Map<String, ByteIterator> values) {
    StringBuilder text = new StringBuilder();
    Map<String, String> inOrder = new TreeMap<>();
    new HashMap<>(values).forEach((name, value) -> inOrder.put(name, value.toString()));
    inOrder.forEach((name, value) -> text.append(name).append(NAME_END).append(value).append(FIELD_END));
    return retried(() -> client.set(key, 0, text.toString()).get() ? Status.OK : Status.ERROR);
  }

  @Override
  public Status update(String table, String key, Map<String, ByteIterator> values) {
    return insert(table, key, values);
  }

  @Override
  public Status delete(String table, String key) {
    return retried(() -> client.delete(key).get() ? Status.OK : Status.NOT_FOUND);
  }

  @Override
  public Status scan(String table, String start, int count, Set<String> fields,
      Vector<HashMap<String, ByteIterator>> result) {
    return Status.NOT_IMPLEMENTED;
  }
}
