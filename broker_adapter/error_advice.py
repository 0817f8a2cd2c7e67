"""Advice for every error number of the broker and the NameServer: meaning, cause, fix.

The table is the source of docs/reference/troubleshooting.md and of `dledger explain`.
"""

from __future__ import annotations

from broker_adapter.errors import Status
from dledger.platform import Advice

BROKER_ADVICE: dict[Status, Advice] = {
    Status.NOT_MASTER: Advice(
        "The broker is not the master, or not writable yet. Nothing was stored.",
        "The master has changed, or no broker has a majority.",
        (
            "Clients find the master automatically. If it lasts, see with `dledger broker status` whether a"
            " majority of the nodes runs."
        ),
        hint="see with `dledger broker status` whether a majority of the nodes runs",
    ),
    Status.SHUTTING_DOWN: Advice(
        "The broker or the client is being closed. Nothing was stored.",
        "A planned stop, or a producer that was closed.",
        "Send to the next master, as clients do; open a new producer.",
    ),
    Status.TOO_MANY_PENDING_BYTES: Advice(
        "Too many bytes are under way. Nothing was stored.",
        "Producers are faster than a majority stores, or answers are not read.",
        "Send again later. Send less at once, or raise `limits.max_pending_bytes` of the node.",
    ),
    Status.DISK_FULL: Advice(
        "The master's disk has no room beyond the reserve. Nothing was stored.",
        "The disk is full, and no other node has room.",
        "Free space on the master's disk, or lower the retention.",
        hint="free space on the master's disk",
    ),
    Status.TOO_MANY_CALLS: Advice(
        "Too many calls are on their way to the master.",
        "Clients ask faster than the master answers.",
        "Ask again later. Connect clients to the master, as routes tell them.",
    ),
    Status.NOT_CONNECTED: Advice(
        "The broker was not reached. Nothing was stored.",
        "The nodes are down, the addresses are wrong, or there is no route of the topic.",
        "Check `--servers` or `--namesrv`, and `dledger broker status`.",
        hint="check --servers or --namesrv, and that the nodes run (`dledger broker status`)",
    ),
    Status.TOO_MANY_HELD_MESSAGES: Advice(
        "Too many delayed messages wait, or too many bytes of half messages are kept. Nothing was stored.",
        "Long delays of many messages, or transactions that nobody ends.",
        "Wait until some are due. End transactions. Raise `delivery.max_delayed` or `max_held_bytes`.",
    ),
    Status.OS_PAGE_CACHE_BUSY: Advice(
        "The master of a classic log waits for its disk. Nothing was stored.",
        "An fdatasync takes longer than `classic.page_cache_busy_ms`.",
        "Send again later. If it lasts, look at the master's disk: its health says how long a sync takes.",
    ),
    Status.OUTCOME_UNKNOWN: Advice(
        "No answer came for sure. The message is in doubt.",
        "A failover or a broken connection while the message was under way.",
        (
            "Look for it (`dledger broker query`) before you send it again, or accept duplicates: `--send-"
            "again`."
        ),
        hint="look at `dledger broker status` before you try again: it may have been done",
    ),
    Status.TOPIC_UNKNOWN: Advice(
        "There is no such topic.",
        (
            "A typo; topics are not created automatically (`auto_create_topics`); the topic was deleted or "
            "has expired."
        ),
        "`dledger broker topic list`, `dledger broker topic create`.",
        hint="see `dledger broker topic list`, or `dledger broker topic create`",
    ),
    Status.TOPIC_NOT_WRITABLE: Advice(
        "The topic takes no messages.",
        "Its permission has no `w`, or it has no queue to write.",
        "`dledger broker topic create NAME --perm rw`.",
        hint="`dledger broker topic create NAME --perm rw` makes it writable",
    ),
    Status.TOPIC_NOT_READABLE: Advice(
        "The topic gives no messages.",
        "Its permission has no `r`.",
        "`dledger broker topic create NAME --perm rw`.",
    ),
    Status.TOPIC_CHANGED: Advice(
        "The topic got fewer queues, or was deleted, while the message waited. Nothing was stored.",
        "An admin changed the topic.",
        "Send again, as clients do automatically.",
    ),
    Status.TOPIC_NAME_INVALID: Advice(
        "The name of the topic is empty or has characters that are not allowed.",
        "Letters, digits, `_`, `-`, `%` and `|` are allowed.",
        "Choose another name.",
    ),
    Status.TOPIC_NAME_TOO_LONG: Advice(
        "The name of the topic is too long.",
        "More than 127 characters.",
        "Choose a shorter name.",
    ),
    Status.PROPERTIES_INVALID: Advice(
        "A property of the message cannot be stored.",
        "An empty name, or a control character that separates properties.",
        "Change the property that the message names.",
    ),
    Status.PROPERTIES_TOO_LONG: Advice(
        "The properties take more than 32 KiB.",
        "Too many or too long properties, keys included.",
        "Put data into the body.",
    ),
    Status.BODY_TOO_LARGE: Advice(
        "The body exceeds `max_body_bytes`.",
        "More than 4 MiB, or than the configured limit.",
        "Split the message, or raise the limit.",
    ),
    Status.FIELD_OUT_OF_RANGE: Advice(
        "A value of the request is out of its range.",
        "A wrong queue, count, time or expression; several brokers where one has to be named.",
        "Correct the value that the message names.",
    ),
    Status.MESSAGE_ID_INVALID: Advice(
        "The text is no message id.",
        "A truncated or invented id.",
        "Take the id from a receipt or from `dledger broker consume --json`.",
    ),
    Status.REQUEST_MALFORMED: Advice(
        "The bytes are no request of this protocol.",
        "A client of another version, or garbage.",
        "Correct the client.",
    ),
    Status.DELAY_TOO_LONG: Advice(
        "The delay exceeds `delivery.max_delay_ms`.",
        "More than a day, or than the configured limit.",
        "Deliver earlier, or raise the limit.",
    ),
    Status.CHANGE_NOT_ALLOWED: Advice(
        "The certificate may not change topics, groups or offsets.",
        "It has none of the node's `tls.admin_names`.",
        "Use an admin's certificate, or add its name on all nodes.",
    ),
    Status.OFFSET_BELOW_MINIMUM: Advice(
        "The offset was purged.",
        "The consumer is older than what the retention keeps.",
        "Go on from the minimum that the message shows: `dledger broker offsets reset GROUP --to-earliest`.",
    ),
    Status.OFFSET_ABOVE_MAXIMUM: Advice(
        "The offset is yet to come.",
        "The offset of another cluster, or a broker that has not dispatched so far.",
        "Wait if dispatch lags (`dledger broker status`); otherwise reset the offset.",
    ),
    Status.MESSAGE_NOT_FOUND: Advice(
        "There is no such message.",
        "It was never stored, was purged, its topic was deleted, or the index lags.",
        "Check key, id and topic. Look at `broker_index_pending`.",
    ),
    Status.TOO_MANY_HELD_PULLS: Advice(
        "Too many pulls or receives wait for messages.",
        "More than `max_held_pulls`.",
        "Ask later. Use fewer consumers, or raise the limit.",
    ),
    Status.NOT_CONFIRMED: Advice(
        "The broker cannot confirm now that its answer would be the newest.",
        "No leader is known, or the broker is still making its queues from the log.",
        "Ask again or elsewhere, as clients do automatically.",
    ),
    Status.BEING_REPAIRED: Advice(
        "The message is damaged on this node.",
        "A bad sector or a flipped bit; the node is fetching it from another one.",
        "Read it from another broker, or in a moment.",
    ),
    Status.GROUP_NOT_ENABLED: Advice(
        "The group may not consume.",
        "`consume_enable` is off.",
        "`dledger broker group create GROUP` enables it again.",
    ),
    Status.HANDLE_INVALID: Advice(
        "The receipt handle is unreadable, over, or was replaced by a newer one.",
        "The invisible time passed and the message was given again, or it was acknowledged already.",
        "Acknowledge in time, or ask for a longer invisible time. The message comes again.",
    ),
    Status.TRANSACTION_UNKNOWN: Advice(
        "There is no such transaction any more.",
        "It was ended otherwise, or given up after `delivery.max_checks`.",
        "Nothing can be changed. Answer checks in time.",
    ),
    Status.DELAYED_UNKNOWN: Advice(
        "There is no such delayed message any more.",
        "It was delivered or recalled.",
        "Nothing.",
    ),
    Status.RECORD_TRUNCATED: Advice(
        "A stored record ends too early.",
        "Damage, or an entry that is no message.",
        "See `broker_set_aside_total`. `dledger scrub` looks for damage.",
    ),
    Status.RECORD_MAGIC: Advice(
        "A stored record has no magic number of a message.",
        "Damage, or an entry that is no message.",
        "As for 750.",
    ),
    Status.RECORD_LENGTHS: Advice(
        "The lengths in a stored record do not fit together.",
        "Damage, or an entry that is no message.",
        "As for 750.",
    ),
    Status.RECORD_BODY_CRC: Advice(
        "The body of a stored record has another checksum.",
        "Damage.",
        "As for 750.",
    ),
    Status.RECORD_TEXT: Advice(
        "Topic or properties of a stored record are no text.",
        "Damage, or a writer of another kind.",
        "As for 750.",
    ),
    Status.RECORD_FIELD: Advice(
        "A field of a stored record is out of its range.",
        "Damage, or a writer of another kind.",
        "As for 750.",
    ),
    Status.UNIT_DAMAGED: Advice(
        "A ConsumeQueue file is damaged.",
        "A bad sector or an editor.",
        (
            "Restart the node: it makes the file again from the log. Or delete the broker's directory of "
            "the stopped node."
        ),
    ),
    Status.INDEX_DAMAGED: Advice(
        "An IndexFile is damaged.",
        "A bad sector or an editor.",
        "As for 756.",
    ),
    Status.QUEUE_ORDER: Advice(
        "A message came for an offset that is not the next one of its queue.",
        "A defect, or a log of an earlier version.",
        "Report it, with the entry. See `broker_set_aside_total`.",
    ),
    Status.IMAGE_DAMAGED: Advice(
        "The checkpoint of the derived files is damaged.",
        "A bad sector or an editor.",
        "Nothing: the broker makes the files again from the log.",
    ),
    Status.GROUP_UNKNOWN: Advice(
        "There is no such group.",
        "A typo, a deleted group, or `auto_create_groups` is off.",
        "`dledger broker group list`, `dledger broker group create`.",
        hint="see `dledger broker group list`, or `dledger broker group create`",
    ),
    Status.GENERATION_STALE: Advice(
        "The generation of the member is over.",
        "The group was rebalanced, or its offsets were reset.",
        "Join again, as the consumer does automatically.",
    ),
    Status.GENERATION_UNKNOWN: Advice(
        "Nobody was given this generation.",
        "A member of another cluster, or a defect of the client.",
        "Join again.",
    ),
    Status.GROUP_HAS_MEMBERS: Advice(
        "Only members commit, or the change needs an empty group.",
        "Consumers of the group are running.",
        "Stop its consumers first.",
        hint="stop its consumers first",
    ),
    Status.NOT_A_MEMBER: Advice(
        "The caller is no member of the group.",
        "Its lease ran out, because it was paused or cut off.",
        "Join again, as the consumer does automatically.",
    ),
    Status.QUEUE_UNKNOWN: Advice(
        "The topic has no such queue.",
        "A wrong number, or the topic got fewer queues.",
        "`dledger broker topic stats TOPIC` shows the queues.",
    ),
    Status.OFFSET_OUT_OF_RANGE: Advice(
        "An offset to be committed is negative or behind the end of its queue.",
        "A defect of the consumer, or offsets of another cluster.",
        "Commit what was consumed.",
    ),
    Status.GROUP_NAME_INVALID: Advice(
        "The name of the group is empty, too long, or has characters that are not allowed.",
        "A typo.",
        "Choose another name.",
    ),
    Status.MEMBER_ID_INVALID: Advice(
        "The id of a member is empty, too long, or not visible ASCII.",
        "A defect of the client.",
        "Choose another id.",
    ),
    Status.TOPIC_RESERVED: Advice(
        "The topic belongs to the broker itself.",
        "An attempt to send to, change or delete it.",
        "Choose another topic.",
    ),
    Status.TOO_MANY_TOPICS: Advice(
        "There are as many topics as there may be.",
        (
            "10,000 at most; 8,000 by use (`auto_create_up_to`), 1,000 of one address "
            "(`auto_create_per_client`)."
        ),
        "Delete topics that nobody uses. Let an admin create the topic.",
    ),
    Status.TOO_MANY_GROUPS: Advice(
        "There are as many groups as there may be.",
        "As for 770.",
        "Delete groups that nobody uses: `dledger broker group delete`.",
    ),
    Status.TOO_MANY_MEMBERS: Advice(
        "The group, or the broker, has as many members as there may be.",
        "More consumers than the limit.",
        "Run fewer consumers.",
    ),
    Status.TOO_MANY_SUBSCRIPTIONS: Advice(
        "The members of one group subscribe to too many topics.",
        "More than the limit for one group.",
        "Use several groups.",
    ),
    Status.TOO_MANY_OFFSETS: Advice(
        "Too many offsets at once, or in all groups together.",
        "Groups that nobody uses keep their offsets.",
        "Delete groups that nobody uses. Commit fewer at once.",
    ),
    Status.TOO_MANY_PROPOSALS: Advice(
        "Too many changes of metadata are on their way.",
        "Many clients create topics, join or commit at once.",
        "Try again later, as clients do automatically.",
    ),
    Status.REBALANCING: Advice(
        "The group has no new generation yet.",
        "Members come or go.",
        "Wait, as the consumer does automatically.",
    ),
    Status.COMMAND_TOO_LARGE: Advice(
        "A change of metadata is too large for one entry.",
        "Too many topics or offsets in one call.",
        "Split the call.",
    ),
    Status.COMMAND_DAMAGED: Advice(
        "A stored change of metadata cannot be read. It is set aside, equally on all nodes.",
        "A defect, or a log of another version.",
        "Report it, with the entry. See `broker_set_aside_total`.",
    ),
    Status.METADATA_DAMAGED: Advice(
        "A stored image of metadata cannot be read.",
        "A defect, or an image of another version.",
        "Report it. Use the version that wrote the image.",
    ),
    Status.NAMESRV_BUSY: Advice(
        "Too many calls of this kind are under way at the NameServer.",
        "Clients ask too fast.",
        "Ask again later, or another NameServer.",
    ),
    Status.NAMESRV_LIMIT: Advice(
        "The NameServer takes no more brokers, nodes, topics, streams or watchers.",
        "A limit of its configuration.",
        "Raise the limit (see [configuration](config.md)), or remove what nobody uses.",
    ),
    Status.NAMESRV_STALE_EPOCH: Advice(
        "A registration is older than the one that is known.",
        "A late message of a former role.",
        "Nothing: the broker registers with its newest role.",
    ),
    Status.NAMESRV_STALE_TERM: Advice(
        "The caller claims to be master in an older term.",
        "A deposed master, or a log made anew under an old name.",
        (
            "Nothing: it registers once its term is the newest, or the old one is forgotten "
            "(`expiry.default_ms`)."
        ),
    ),
    Status.NAMESRV_CONFLICT: Advice(
        "Two nodes claim one place.",
        "Two logs use one broker name, or two nodes one broker id.",
        "Give each log a `name` of its own in `[program.settings]`.",
    ),
    Status.NAMESRV_INVALID: Advice(
        "The request cannot be meant.",
        "A client of another version, or garbage.",
        "Correct the client.",
    ),
    Status.NAMESRV_BROKER_UNKNOWN: Advice(
        "No such broker is registered.",
        "A typo, or the broker is down.",
        "`dledger-namesrv cluster` shows all.",
    ),
    Status.NAMESRV_CONFIG_UNKNOWN: Advice(
        "There is no such setting.",
        "A typo.",
        "`dledger-namesrv kv list NAMESPACE`.",
    ),
    Status.NAMESRV_CONFIG_LIMIT: Advice(
        "A setting is too large, or there are too many.",
        "A limit of the configuration.",
        "Remove settings, or raise the limit.",
    ),
    Status.NAMESRV_CONFIG_NOT_STORED: Advice(
        "A setting could not be written. It is not sure what a restart finds.",
        "The NameServer's disk is full or fails.",
        "Free space, then set it again.",
    ),
    Status.NAMESRV_CONFIG_DAMAGED: Advice(
        "`kvConfig.json` cannot be read. The NameServer does not start.",
        "An editor or a failing disk.",
        "Put the file back from a copy, or move it away to start without settings.",
    ),
    Status.NAMESRV_UNREACHABLE: Advice(
        "No NameServer answered. A change may or may not have been made.",
        "They are down, or the addresses are wrong.",
        "Check `--namesrv`, or name the nodes with `--servers`. Make the change again.",
        hint="check --namesrv, and that one runs there; or name the nodes with --servers",
    ),
    Status.NAMESRV_TERM_REFUSED: Advice(
        "A registration names a term that no elections lead to.",
        "A forged registration, or a node with an absurd term.",
        "See 624.",
    ),
    Status.NAMESRV_NOT_ALLOWED: Advice(
        "The certificate may not change this.",
        "It has no name of `tls.broker_names` or `tls.admin_names`.",
        "Use another certificate, or add its name.",
    ),
    Status.FRAME_INVALID: Advice(
        "The bytes are no frame of RocketMQ's remoting protocol, or a larger one than may be.",
        "Something else than a client of RocketMQ 4.x talks to this port, or a message of more than 16 MiB.",
        "Clients of RocketMQ 5 (gRPC) have a port of their own.",
    ),
    Status.EXECUTOR_FULL: Advice(
        "Too many requests of this kind are under way.",
        "More load than the executor of these request codes takes.",
        "Clients try again automatically. Look at the metric of the executor that the message names.",
    ),
    Status.QUEUE_WAIT_TOO_LONG: Advice(
        "A send waited too long for its turn. Nothing was stored.",
        "The node has more to do than its CPU can, or was stopped for a while.",
        "Send again later. Send less at once, or raise `remoting.send_queue_wait_ms`.",
    ),
    Status.CODE_UNKNOWN: Advice(
        "Nobody answers this request code here.",
        "A request for a broker came to a NameServer, or a command that is not offered.",
        "docs/namesrv.md lists what NameServers answer, docs/remoting.md what brokers do.",
    ),
    Status.ANSWER_MISSING: Advice(
        "A request was sent, and no answer came in time.",
        "The connection broke, or the server is slow. The request may or may not have been done.",
        "Ask again if that is safe; look at what was done if it is not.",
    ),
    Status.REQUEST_FAILED: Advice(
        "A server of RocketMQ answered with an error that has no number here.",
        "The message has its response code and its remark.",
        "Look up the code in RocketMQ's documentation, and the remark in the log of that server.",
    ),
    Status.STORE_UNREADABLE: Advice(
        "A directory is no store of a RocketMQ broker that can be read.",
        "Another directory, files of different sizes, a DLedger or RocksDB store.",
        "Name storePathRootDir of the broker. docs/moving-in.md says which stores can be read.",
    ),
    Status.STORE_DAMAGED: Advice(
        "A store of RocketMQ has records, or units of ConsumeQueues, that contradict each other.",
        "Damage of the disk, or a broker that still runs.",
        (
            "Stop the broker. If only its ConsumeQueues are wrong, move `consumequeue` away: the CommitLog"
            " decides then, as it does in RocketMQ."
        ),
    ),
    Status.STORE_TABLE_DAMAGED: Advice(
        "A file in `config` of a store of RocketMQ is not what a broker writes.",
        "It was edited, or is damaged, and so is its `.bak`.",
        "Repair the file that the message names.",
    ),
    Status.STORE_UNSUPPORTED: Advice(
        "A store of RocketMQ has something that cannot be imported.",
        "The message says what.",
        "docs/moving-in.md lists what can be.",
    ),
    Status.IMPORT_OUT_OF_ORDER: Advice(
        "A message that comes with its queue offset does not have the next one. Nothing was stored.",
        "Somebody else sends to the queue, or two imports run.",
        "Let nobody send to topics that are being imported, and import again.",
    ),
    Status.QUEUE_NOT_NEW: Advice(
        "A queue cannot begin at another offset: there were messages in it.",
        "The topic was used before the import.",
        "Import into topics that were never used.",
    ),
    Status.IMPORT_DIFFERS: Advice(
        "What was imported is not what the store has.",
        "Somebody else sent to the topic, or its messages were imported from another store.",
        "The message names the queues. Import into topics that were never used.",
    ),
    Status.MASTER_DIFFERS: Advice(
        "A queue that was mirrored is not that of the master any more. Nothing was stored.",
        "The topic was deleted and made again there, the master lost messages, or its retention removed some "
        "while no mirror ran.",
        "Delete the topic that the message names in the group of ours, and run the mirror again.",
    ),
    Status.TAKEOVER_BLOCKED: Advice(
        "A mirror cannot take over from its master yet. The master takes messages as before.",
        "The message says what is in the way.",
        "docs/moving-in.md says what becomes of it; run the mirror again.",
    ),
    Status.LOG_FAILED: Advice(
        "A file of a classic broker's CommitLog could not be written, synced or removed. Whether the newest"
        " messages are on disk is not known.",
        "An error of the disk or the file system; the message has it.",
        "The broker stops. Repair the disk, then start it again: it recovers what is on disk.",
    ),
    Status.LOG_OFFSET: Advice(
        "Bytes for another place than the end of a classic broker's CommitLog. Nothing was stored.",
        "A master and a slave whose logs differ, or a truncation to an offset that is not in the log.",
        "Empty the slave's store directory: it copies its master's log anew.",
    ),
    Status.FLUSH_DISK_TIMEOUT: Advice(
        "The message is in the classic log, and was not durable in time. It is in doubt.",
        "The disk is slow or stands still.",
        "Look at the disk. Send again if duplicates do no harm.",
    ),
    Status.FLUSH_SLAVE_TIMEOUT: Advice(
        "The message is in the master's classic log, and no slave has acknowledged it in time. It is in "
        "doubt: losing the master may lose it.",
        "The slave is slow, or the connection to it.",
        "Look at the slave with `dledger broker status`. Send again if duplicates do no harm.",
    ),
    Status.SLAVE_NOT_AVAILABLE: Advice(
        "The message is in the master's classic log, and there is no slave that could acknowledge it. It is "
        "in doubt: losing the master may lose it.",
        "No slave is connected, or all are too far behind.",
        "Start the slave, or let the master be ASYNC_MASTER.",
    ),
    Status.ROLE_CHANGE_BLOCKED: Advice(
        "A broker with a classic log was not given the role. Nothing has changed.",
        "It lacks what its master has, or its master is alive, or it is master and a slave lacks something; "
        "the message says which, and how much.",
        "Wait until the slave has all, or stop the master first; `--force` gives up what is lacking.",
    ),
    Status.HA_REPORT_REFUSED: Advice(
        "A slave says that it has what its master never sent, or less than it said before.",
        "Something else than a slave talks to the port, or the slave followed another master.",
        "Look at the address that the message names. A slave that is ahead needs its former master.",
    ),
    Status.HA_HANDSHAKE_MISSING: Advice(
        "A master or slave asks for the handshake, and the other end does not know it.",
        "The other end is a broker of RocketMQ's own, or something else.",
        "Ask for no handshake where brokers of RocketMQ's own take part: they have none.",
    ),
    Status.HA_NOT_PROVEN: Advice(
        "Master or slave does not know the secret of the cluster.",
        "Their files with the secret differ.",
        "Copy the file of the secret from one broker to the other. While it is changed, it has two lines.",
    ),
    Status.HA_IDENTITY: Advice(
        "Master and slave do not belong together.",
        "They have different clusters, broker names or file sizes, equal ids, or the role is another one.",
        "The message names what differs. Change the settings of one of them.",
    ),
    Status.HA_DIVERGED: Advice(
        "The slave's log is not a part of its master's. Nothing was copied.",
        "The slave followed another master, or the master lost the end of its log.",
        "Decide which log is right. Empty the store of the slave if it is the master's, and start it again.",
        hint="decide which log is right; empty the slave's store if it is the master's",
    ),
    Status.HA_GAP: Advice(
        "The master has removed what the slave needs next, or what tells whether their logs agree.",
        "The slave was away for longer than the master keeps its log.",
        "Empty the store of the slave, and start it again.",
    ),
    Status.HA_TRANSFER_REFUSED: Advice(
        "What a master sent does not go on where the slave's log ends, or is nothing that a master sends.",
        "Something else than a master of RocketMQ is at the address, or the slave is ahead of its master.",
        "Look at the address that the message names, and which of the two logs is right.",
    ),
    Status.NOT_AUTHENTICATED: Advice(
        "A request of the remoting protocol was not signed by an account.",
        "The client signs nothing, with an unknown access key, or with another secret.",
        "Give the client access key and secret of an account of rocketmq_v2.access_control.",
    ),
    Status.NOT_PERMITTED: Advice(
        "The account may not ask this over the remoting protocol.",
        "It lacks a right in the topic or group, or comes from an address that is not its own.",
        "docs/remoting.md says what each request code needs; change the accounts' file if it should.",
    ),
    Status.CLIENT_NOT_CONNECTED: Advice(
        "The client that an answer is for is connected neither to this node nor to the master.",
        "It has ended, or not told a node of itself that has just started.",
        "Clients try other nodes automatically; if it waits no more, nothing is to be done.",
    ),
}
