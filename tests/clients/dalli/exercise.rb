# frozen_string_literal: true

# Calls what Dalli offers, over its binary protocol, and says in TAP what worked.
#
#   ruby exercise.rb HOST:PORT...
#
# Dalli's own tests are in its repository alone: neither the gem nor Debian's package has them.

require 'dalli'

Dalli.logger.level = Logger::ERROR
SERVERS = ARGV
$count = 0

def client(**options)
  client = Dalli::Client.new(SERVERS, **options)
  yield client
ensure
  client&.close
end

def check(name, **options)
  $count += 1
  begin
    client(**options) do |dalli|
      dalli.flush
      yield dalli
    end
    puts "ok #{$count} #{name}"
  rescue StandardError => e
    puts "not ok #{$count} #{name}"
    puts "  # #{e.class}: #{e.message}"
  end
end

def same(got, want)
  raise "got #{got.inspect}, not #{want.inspect}" unless got == want
end

check('a value of each type is read back') do |dalli|
  [1, 'text', :symbol, nil, [1, { 'a' => 2.5 }], "\u00e4\u00f6", "\x00\xff".b].each_with_index do |value, at|
    raise 'not stored' unless dalli.set("type#{at}", value)

    same(dalli.get("type#{at}"), value)
  end
end

check('a miss is nil') { |dalli| same(dalli.get('nobody'), nil) }

check('raw values stay as they are') do |dalli|
  dalli.set('raw', '5', 0, raw: true)
  same(dalli.get('raw'), '5')
end

check('a value is compressed and read back', compress: true, compression_min_size: 64) do |dalli|
  dalli.set('long', 'ab' * 10_000)
  same(dalli.get('long'), 'ab' * 10_000)
end

check('a value of a megabyte less a little is stored') do |dalli|
  value = Random.new(1).bytes(1_000_000)
  raise 'not stored' unless dalli.set('large', value, 0, raw: true)

  same(dalli.get('large'), value)
end

check('one above the limit is an error of the client or the server', value_max_bytes: 4 << 20) do |dalli|
  raise 'stored' if dalli.set('huge', Random.new(1).bytes(3 << 20), 0, raw: true)
rescue Dalli::ValueOverMaxSize, Dalli::DalliError
  same(dalli.set('after', 1).nil?, false)
end

check('add stores once') do |dalli|
  raise 'first' unless dalli.add('once', 1)

  same(dalli.add('once', 2), false)
  same(dalli.get('once'), 1)
end

check('replace needs a value') do |dalli|
  raise 'replaced' if dalli.get('absent') || dalli.replace('absent', 1) == true

  same(dalli.get('absent'), nil)
  dalli.set('there', 1)
  raise 'not replaced' unless dalli.replace('there', 2)

  same(dalli.get('there'), 2)
end

check('delete says whether there was one') do |dalli|
  dalli.set('gone', 1)
  same(dalli.delete('gone'), true)
  raise 'deleted twice' if dalli.delete('gone')

  same(dalli.get('gone'), nil)
end

check('append and prepend') do |dalli|
  dalli.set('middle', 'b', 0, raw: true)
  same(dalli.append('middle', 'c'), true)
  same(dalli.prepend('middle', 'a'), true)
  same(dalli.get('middle'), 'abc')
  same(dalli.append('nowhere', 'c'), false)
end

check('counters begin, rise and stop at zero') do |dalli|
  same(dalli.incr('counter', 1), nil)
  same(dalli.incr('counter', 1, 0, 10), 10)
  same(dalli.incr('counter', 5), 15)
  same(dalli.decr('counter', 20), 0)
  dalli.set('max', (2**64 - 1).to_s, 0, raw: true)
  same(dalli.incr('max', 1), 0)
end

check('compare and swap is refused after a change') do |dalli|
  dalli.set('swap', 1)
  raise 'refused' unless dalli.cas('swap') { |value| value + 1 }

  same(dalli.get('swap'), 2)
  beside = Dalli::Client.new(SERVERS)
  same(dalli.cas('swap') { |value| beside.set('swap', 9) && value + 1 }, false)
  same(dalli.get('swap'), 9)
  same(dalli.cas('nobody') { raise 'called' }, nil)
end

check('cas! creates what is not there') do |dalli|
  raise 'refused' unless dalli.cas!('fresh') { 'made' }

  same(dalli.get('fresh'), 'made')
end

require 'dalli/cas/client'
check('values with their versions') do |dalli|
  dalli.set('version', 1)
  value, cas = dalli.get_cas('version')
  same(value, 1)
  raise 'no version' unless cas.is_a?(Integer) && cas.positive?

  raise 'refused' unless dalli.set_cas('version', 2, cas)

  same(dalli.set_cas('version', 3, cas), false)
  _, cas = dalli.get_cas('version')
  raise 'refused' unless dalli.replace_cas('version', 4, cas)

  same(dalli.delete_cas('version', cas), false)
  _, cas = dalli.get_cas('version')
  same(dalli.delete_cas('version', cas), true)
end

check('many keys at once, those that are there') do |dalli|
  300.times { |at| dalli.set("many#{at}", at) if at.even? }
  got = dalli.get_multi((0...300).map { |at| "many#{at}" })
  same(got.size, 150)
  same(got['many298'], 298)
  versions = dalli.get_multi_cas('many0', 'many1', 'many2')
  same(versions.keys.sort, %w[many0 many2])
end

check('quiet requests in a block') do |dalli|
  dalli.multi do
    200.times { |at| dalli.set("quiet#{at}", at) }
    dalli.delete('quiet7')
    dalli.incr('quiet-counter', 1, 0, 5)
  end
  same(dalli.get('quiet199'), 199)
  same(dalli.get('quiet7'), nil)
end

check('fetch stores what the block gives') do |dalli|
  same(dalli.fetch('fetched') { 3 }, 3)
  same(dalli.fetch('fetched') { raise 'called' }, 3)
end

check('fetch remembers nil', cache_nils: true) do |dalli|
  same(dalli.fetch('nothing') { nil }, nil)
  same(dalli.fetch('nothing') { 1 }, nil)
end

check('values expire, and touch keeps them') do |dalli|
  dalli.set('short', 1, 1)
  dalli.set('kept', 1, 1)
  same(dalli.touch('kept', 100), true)
  same(dalli.touch('nobody', 100), nil)
  sleep 0.05 until dalli.get('short').nil?
  same(dalli.get('kept'), 1)
end

check('get and touch') do |dalli|
  dalli.set('gat', 1, 1)
  same(dalli.gat('gat', 100), 1)
  same(dalli.gat('nobody', 100), nil)
  dalli.set('short', 1, 1)
  sleep 0.05 until dalli.get('short').nil?
  same(dalli.get('gat'), 1)
end

check('long keys, keys with spaces, names before keys', namespace: 'ours') do |dalli|
  ['k' * 400, 'a key', "sch\u00f6n"].each do |key|
    dalli.set(key, key)
    same(dalli.get(key), key)
  end
  client { |other| same(other.get('ours:a key'), 'a key') }
end

check('flush takes all') do |dalli|
  dalli.set('flushed', 1)
  dalli.flush
  same(dalli.get('flushed'), nil)
  dalli.set('flushed', 2)
  same(dalli.get('flushed'), 2)
end

check('statistics and versions of each server') do |dalli|
  same(dalli.stats.size, SERVERS.size)
  raise 'no uptime' unless dalli.stats.values.all? { |stats| stats['uptime'].to_i >= 0 && stats.key?('curr_items') }

  raise 'no version' unless dalli.version.values.all? { |version| version =~ /\A\d+\.\d+/ }

  same(dalli.reset_stats.all?, true)
  dalli.alive!
end

check('several threads share a client', threadsafe: true) do |dalli|
  threads = (0...8).map do |thread|
    Thread.new do
      100.times do |at|
        dalli.set("t#{thread}-#{at}", at)
        same(dalli.get("t#{thread}-#{at}"), at)
      end
    end
  end
  threads.each(&:join)
end

check('a closed client connects again') do |dalli|
  dalli.set('open', 1)
  dalli.close
  same(dalli.get('open'), 1)
end

puts "1..#{$count}"
