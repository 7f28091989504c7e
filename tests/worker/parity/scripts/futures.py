import witness  # noqa: F401, I001
import asyncio
from concurrent.futures import ThreadPoolExecutor


async def double(number):
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, lambda: number * 2)


print(asyncio.run(double(21)))
pool = ThreadPoolExecutor(2)
print(list(pool.map(str, range(3))))
pool.submit(print, "submitted last")
