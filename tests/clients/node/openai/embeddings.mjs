import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "not-needed" });

const response = await client.embeddings.create({ model: process.env.MODEL, input: ["river", "stone"] });

console.log(JSON.stringify(response.data.map((one) => one.embedding.length)));
