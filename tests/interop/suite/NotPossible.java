package org.apache.rocketmq.test.base;

/** Thrown if a test needs an object that exists only in the process of a RocketMQ server. */
public final class NotPossible extends UnsupportedOperationException {
    public NotPossible(String what) {
        super(what);
    }

    /**
     * Return an object of a subclass whose constructor was not executed. All inherited fields are null, so an
     * inherited method cannot return a value that does not come from the remote server.
     */
    static <T> T withoutConstructor(Class<T> type) {
        try {
            java.lang.reflect.Field field = sun.misc.Unsafe.class.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            return type.cast(((sun.misc.Unsafe) field.get(null)).allocateInstance(type));
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }
}
